//! Writes the specs of fixtures for a target: `compile TARGET_DIR FIXTURES OUT [NAME...]`.
//!
//! The file of a model is `OUT/FIXTURE.py`. A target of several files also gets a folder `OUT/FIXTURE` with all of them.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::path::Path;

use onboard_compile::{Code, ConfigTexts, Target, compile};
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
        match compile(&spec, &OpSet::builtin(), &target, &ConfigTexts::from_config(&config)) {
            Ok(code) => {
                let file = Path::new(out).join(format!("{name}.py"));
                fs_err::write(&file, &code.text).expect("it is written");
                if !code.extra_files.is_empty() {
                    folder_of(&Path::new(out).join(&name), &code);
                }
                lines += &[&name, " ", &spec.name.name, "\n"].concat();
            }
            Err(findings) => findings.iter().for_each(|one| show(&name, one)),
        }
    }
    fs_err::write(Path::new(out).join("specs.txt"), lines).expect("it is written");
}

fn folder_of(folder: &Path, code: &Code) {
    let model = (code.name.clone(), code.text.clone());
    for (path, text) in code.extra_files.iter().chain([&model]) {
        let path = folder.join(path);
        fs_err::create_dir_all(path.parent().expect("a folder")).expect("it is made");
        fs_err::write(&path, text).expect("it is written");
    }
}

fn show(name: &str, one: &Finding) {
    let place = one.at.as_ref().map(|at| format!("{}:{}", at.source.path, at.line()));
    println!("{name}: {} ({})", one.message, place.unwrap_or_default());
}
