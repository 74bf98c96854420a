use super::*;

#[test]
fn every_file_is_read() {
    for source in sources() {
        if let Err(findings) = ProcessorSheet::read(&source) {
            let style = registry::render::RenderStyle::Plain;
            panic!("{}\n{}", source.path, registry::render::render(&findings, style));
        }
    }
    assert!(ProcessorSheet::all().len() > 5, "the files were found");
}
