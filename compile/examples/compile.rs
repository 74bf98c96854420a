//! Writes the specs of fixtures for a target: `compile TARGET_DIR FIXTURES OUT [NAME...]`.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::collections::BTreeSet;
use std::path::Path;

use onboard_compile::{Target, compile};
use registry::config::Config;
use registry::diag::Finding;
use registry::library::Library;
use registry::ops::OpSet;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, fixtures, out, names @ ..] = args.as_slice() else {
        println!("compile TARGET_DIR FIXTURES OUT [NAME...]");
        return;
    };
    let target = Target::open(Path::new(target)).expect("a target");
    let library = Library::builtin();
    let mut folders: Vec<_> = fs_err::read_dir(fixtures)
        .expect("a folder")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("config.json").is_file() && path.join("reference").is_dir())
        .collect();
    folders.sort();
    let mut lines = String::new();
    for folder in folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        let config = Config::read(&folder.join("config.json")).expect("a config");
        let matches = library.find(&config);
        let [spec] = matches.as_slice() else {
            println!("{name}: no spec");
            continue;
        };
        let spec = library.load(spec, &[]).expect("a spec");
        let words = words(&folder.join("config.json"));
        match compile(&spec, &OpSet::builtin(), &target, &words) {
            Ok(code) => {
                let own = if code.beside.is_empty() { format!("{name}.py") } else { code.name };
                fs_err::write(Path::new(out).join(own), &code.text).expect("it is written");
                for (file, text) in &code.beside {
                    fs_err::write(Path::new(out).join(file), text).expect("it is written");
                }
                lines += &[&name, " ", &spec.name.name, "\n"].concat();
            }
            Err(findings) => findings.iter().for_each(|one| show(&name, one)),
        }
    }
    fs_err::write(Path::new(out).join("specs.txt"), lines).expect("it is written");
}

fn words(path: &Path) -> BTreeSet<String> {
    let text = fs_err::read_to_string(path).expect("a config");
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn show(name: &str, one: &Finding) {
    let place = one.at.as_ref().map(|at| format!("{}:{}", at.source.path, at.line()));
    println!("{name}: {} ({})", one.message, place.unwrap_or_default());
}
