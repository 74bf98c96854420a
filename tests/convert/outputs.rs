//! Tests of special outputs: already finished, shrinking sources, links, signals, standard output.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::tool::{Ran, convert, copy, fixture, onboard, run};

fn to(source: &Path, format: &str, output: &Path, more: &[&str]) -> Command {
    let mut command = convert();
    command.arg(source).args(["--to", format, "-o"]).arg(output).args(more);
    command
}

fn resume(source: &Path, format: &str, output: &Path) -> Ran {
    run(&mut to(source, format, output, &["--resume"]))
}

#[test]
fn resuming_a_finished_conversion_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let changed = dir.path().join("changed");
    copy("llama_256", &changed);
    let path = changed.join("model.safetensors");
    let mut bytes = fs_err::read(&path).unwrap();
    let from = bytes.len() / 2;
    bytes[from..].iter_mut().for_each(|byte| *byte &= 0xbf);
    fs_err::write(path, bytes).unwrap();
    for format in ["gguf:q4_k_m", "fp8"] {
        let output = dir.path().join(format.replace(':', "-"));
        let source = fixture("llama_256");
        resume(&source, format, &output).code(0).prints("wrote");
        resume(&source, format, &output).code(0).prints("was finished before");
        resume(&changed, format, &output).code(2).says("is there already");
        run(&mut to(&source, format, &output, &[])).code(2).says("--force");
    }
}

#[test]
fn there_may_be_fewer_files_than_shards() {
    let dir = tempfile::tempdir().unwrap();
    let source = fixture("llama_256");
    for format in ["gguf:bf16", "bf16"] {
        let output = dir.path().join(format.replace(':', "-"));
        let ran = run(&mut to(&source, format, &output, &["--shard", "1000/1000"])).code(0);
        ran.prints("nothing is left to write");
        assert!(!output.exists() || fs_err::read_dir(&output).unwrap().count() == 0);
        let ran = run(&mut to(&source, format, &output, &["--shard", "1/1000"])).code(0);
        ran.prints("is counted of").prints("wrote");
    }
}

#[test]
fn standard_output_is_refused_where_it_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    for format in ["gguf:bf16", "fp8"] {
        let mut command = to(&fixture("llama_256"), format, Path::new("-"), &[]);
        run(command.current_dir(dir.path())).code(2).says("standard output");
    }
    assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_link_out_of_a_checkpoint_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let out = dir.path().join("out");
    copy("llama_256", &source);
    let secret = dir.path().join("secret");
    fs_err::write(&secret, "secret").unwrap();
    std::os::unix::fs::symlink(&secret, source.join("notes.txt")).unwrap();
    run(&mut to(&source, "bf16", &out, &[])).code(2).says("outside the checkpoint");
    assert!(!out.join("notes.txt").exists());
    fs_err::remove_file(source.join("notes.txt")).unwrap();
    std::os::unix::fs::symlink("config.json", source.join("notes.txt")).unwrap();
    run(&mut to(&source, "bf16", &out, &[])).code(0);
    assert!(out.join("notes.txt").symlink_metadata().unwrap().is_file());
}

#[test]
fn a_template_that_leads_out_of_a_checkpoint_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let secret = dir.path().join("secret");
    copy("llama", &source);
    fs_err::write(&secret, "secret").unwrap();
    let templates = source.join("additional_chat_templates");
    fs_err::create_dir(&templates).unwrap();
    let names = ["additional_chat_templates/x.jinja", "chat_template.jinja", "chat_template.json"];
    fs_err::write(&secret, "{\"chat_template\": \"secret\"}").unwrap();
    let config = source.join("tokenizer_config.json");
    let text = fs_err::read_to_string(&config).unwrap();
    fs_err::write(&config, text.replace("\"chat_template\"", "\"another\"")).unwrap();
    for link in names.map(|name| source.join(name)) {
        if !link.ends_with("chat_template.json") {
            fs_err::write(source.join("chat_template.jinja"), "{{ messages }}").unwrap();
        }
        fs_err::remove_file(&link).ok();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        let file = dir.path().join("m.gguf");
        run(&mut to(&source, "gguf:bf16", &file, &[])).code(2).says("outside the checkpoint");
        assert!(!file.exists());
        fs_err::remove_file(&link).unwrap();
    }
}

#[test]
fn a_pipe_beside_the_weights_is_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let out = dir.path().join("out");
    copy("llama_256", &source);
    let pipe = source.join("notes.txt");
    Command::new("mkfifo").arg(&pipe).status().unwrap();
    run(&mut to(&source, "bf16", &out, &[])).code(2).says("notes.txt").says("no regular file");
    assert!(!out.join("model.safetensors").exists());
}

#[test]
fn weights_of_another_model_under_other_names_are_neither_kept_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs_err::create_dir(&out).unwrap();
    for name in ["pytorch_model.bin", "consolidated.safetensors", "model.fp16.safetensors"] {
        fs_err::write(out.join(name), "old").unwrap();
        let ran = run(&mut to(&fixture("llama_256"), "bf16", &out, &["--force"])).code(2);
        ran.says(name).says("move it away");
        assert_eq!(fs_err::read(out.join(name)).unwrap(), b"old");
        assert!(!out.join("model.safetensors").exists());
        fs_err::remove_file(out.join(name)).unwrap();
    }
}

#[test]
fn a_finished_file_is_held_to_its_sources_again() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let file = dir.path().join("m.gguf");
    copy("llama_256", &source);
    resume(&source, "gguf:f16", &file).code(0);
    resume(&source, "gguf:f16", &file).code(0).prints("was finished before");
    // Damage at the end.
    let good = fs_err::read(&file).unwrap();
    let mut bad = good.clone();
    let end = bad.len();
    bad[end - 200..end - 100].fill(0);
    fs_err::write(&file, &bad).unwrap();
    resume(&source, "gguf:f16", &file).code(2).says("is there already");
    fs_err::write(&file, &good).unwrap();
    resume(&source, "gguf:f16", &file).code(0);
    // Sources written after the output.
    let weights = fs_err::File::options().write(true).open(source.join("model.safetensors"));
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    weights.unwrap().file().set_modified(later).unwrap();
    let ran = resume(&source, "gguf:f16", &file).code(2);
    ran.says("is older than its source").says("--verify");
}

#[test]
fn a_folder_of_templates_that_is_a_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    let out = dir.path().join("out");
    let precious = dir.path().join("precious");
    copy("llama_256", &source);
    fs_err::create_dir(&out).unwrap();
    fs_err::create_dir(&precious).unwrap();
    fs_err::write(precious.join("mine.jinja"), "mine").unwrap();
    std::os::unix::fs::symlink(&precious, out.join("additional_chat_templates")).unwrap();
    for templates in [false, true] {
        if templates {
            let folder = source.join("additional_chat_templates");
            fs_err::create_dir(&folder).unwrap();
            fs_err::write(folder.join("mine.jinja"), "theirs").unwrap();
        }
        run(&mut to(&source, "bf16", &out, &["--force"])).code(2).says("remove the link");
        assert_eq!(fs_err::read(precious.join("mine.jinja")).unwrap(), b"mine");
        assert!(!out.join("model.safetensors").exists());
    }
}

#[test]
fn a_part_that_is_a_link_is_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("p.gguf");
    let precious = dir.path().join("precious");
    for end in [".part", ".part.journal"] {
        fs_err::write(&precious, "precious").unwrap();
        let link = dir.path().join(format!("p.gguf{end}"));
        std::os::unix::fs::symlink(&precious, link).unwrap();
        run(&mut to(&fixture("llama_256"), "gguf:bf16", &out, &["--force"])).code(0);
        assert_eq!(fs_err::read(&precious).unwrap(), b"precious");
    }
}

/// Waits until a file has this many lines, or the process has ended.
fn wait(child: &mut Child, path: &Path, lines: usize) {
    while fs_err::read_to_string(path).map_or(0, |text| text.lines().count()) < lines
        && child.try_wait().unwrap().is_none()
    {
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn signal(child: &Child, signal: &str) {
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
}

#[test]
fn a_source_that_shrinks_is_named_and_the_output_stays_unfinished() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    let out = dir.path().join("m.gguf");
    copy("llama_256", &model);
    let source = model.join("model.safetensors");
    let journal = dir.path().join("m.gguf.part.journal");
    let mut command = to(&model, "gguf:q4_k_m", &out, &["--slab", "1", "--threads", "1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait(&mut child, &journal, 20);
    // Stopped, so that it cannot finish in the meantime.
    signal(&child, "-STOP");
    fs_err::OpenOptions::new().write(true).open(&source).unwrap().set_len(1 << 12).unwrap();
    signal(&child, "-CONT");
    let ended = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{errors}");
    // If every byte was read before, the change is found at the end.
    let reasons = ["became shorter while it was read", "was changed while it was read"];
    assert!(errors.contains("model.safetensors`"), "{errors}");
    assert!(reasons.iter().any(|reason| errors.contains(reason)), "{errors}");
    assert!(!out.exists() && journal.exists() && dir.path().join("m.gguf.part").exists());
}

#[test]
fn a_folder_that_is_unfinished_is_called_so() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut command = to(&fixture("llama_256"), "bf16", &out, &[]);
    assert_ne!(run(command.env("ONBOARD_ABORT_AT", "3")).code, 0);
    let ran = run(onboard().arg("run").arg(&out).args(["--tokens", "1", "-n", "1"])).code(2);
    ran.says("unfinished conversion").says("--resume");
}

#[test]
fn a_source_of_another_time_is_not_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("llama_256", &model);
    let weights = fs_err::OpenOptions::new().write(true).open(model.join("model.safetensors"));
    let weights = weights.unwrap().into_parts().0;
    let time = weights.metadata().unwrap().modified().unwrap();
    for format in ["gguf:q8_0", "fp8"] {
        let out = dir.path().join(format.replace(':', "-"));
        let mut command = to(&model, format, &out, &[]);
        assert_ne!(run(command.env("ONBOARD_ABORT_AT", "1")).code, 0);
        weights.set_modified(time + Duration::from_secs(1)).unwrap();
        resume(&model, format, &out).code(2).says("a conversion of other weights");
        weights.set_modified(time).unwrap();
        resume(&model, format, &out).code(0).prints("wrote");
    }
}

#[test]
fn two_conversions_at_once_do_not_share_an_output() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.gguf");
    let journal = dir.path().join("m.gguf.part.journal");
    let slow = ["--slab", "1", "--threads", "1"];
    let mut command = to(&fixture("llama_256"), "gguf:q4_k_m", &out, &slow);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait(&mut child, &journal, 50);
    signal(&child, "-STOP");
    let before = fs_err::read(&journal).unwrap();
    for more in [&slow[..], &[&slow[..], &["--resume"]].concat()] {
        let ran = run(&mut to(&fixture("llama_256"), "gguf:q4_k_m", &out, more));
        ran.code(2).says("another conversion is writing");
    }
    assert!(fs_err::read(&journal).unwrap() == before, "the first one's journal is untouched");
    signal(&child, "-CONT");
    assert!(child.wait().unwrap().success());
}
