//! Writes specs for a target: `compile TARGET_DIR OUT_DIR SPEC...`.

use std::collections::BTreeSet;
use std::path::Path;

use onboard_compile::{Target, compile};
use registry::library::Library;
use registry::ops::OpSet;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, out, specs @ ..] = args.as_slice() else { return };
    let target = Target::open(Path::new(target)).map_err(show).expect("a target");
    let library = Library::builtin();
    let kinds = BTreeSet::from(["default".to_owned()]);
    for name in specs {
        let spec = match library.load(name, &[]) {
            Ok(spec) => spec,
            Err(findings) => return show(findings),
        };
        match compile(&spec, &OpSet::builtin(), &target, &kinds) {
            Ok(code) => {
                fs_err::write(Path::new(out).join(&code.name), &code.text).expect("it is written");
            }
            Err(findings) => {
                println!("=== {name}");
                show(findings);
            }
        }
    }
}

fn show(findings: Vec<registry::diag::Finding>) {
    for one in findings {
        println!("{} {}:{}", one.message, one.at.as_ref().map_or("", |at| &at.source.path), one.at.as_ref().map_or(0, |at| at.line()));
    }
}
