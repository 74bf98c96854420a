use super::*;

#[test]
fn every_builtin_spec_loads() {
    let library = Library::builtin();
    let mut all = Vec::new();
    for name in library.names() {
        if let Err(findings) = library.load(name, &[]) {
            all.extend(findings);
        }
    }
    assert_eq!(all, []);
}
