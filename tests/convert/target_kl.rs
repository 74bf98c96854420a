//! Tests of GGUF files that have to meet a target divergence: measured, raised, and measured again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use formats::codec::BlockType;
use formats::gguf::GgufFile;

use super::quantized::divergence;
use crate::tool::{Ran, convert, fixture, parity, run};

/// Returns the conversion of a checkpoint to a mix of 4 bits with a target divergence.
fn to_meet(source: &Path, kl: &str, out: &Path) -> Command {
    let mut command = convert();
    command.arg(source).args(["--to", "gguf:q4_k_m", "--target-kl", kl, "-o"]).arg(out);
    command
}

/// Measures the cost of a file against the dump of its fixture.
fn cost(file: &Path, name: &str) -> f64 {
    let mut check = parity();
    check.arg("check").arg(file).arg("--reference").arg(fixture(name).join("reference"));
    divergence(&run(&mut check).code(0).out)
}

fn types(file: &Path) -> BTreeMap<String, BlockType> {
    let file = GgufFile::open(file).unwrap();
    file.tensors().iter().map(|info| (info.name.clone(), info.ty)).collect()
}

fn bits(ty: BlockType) -> f64 {
    ty.bytes() as f64 / ty.elements() as f64
}

/// Returns the number of raised tensors, and of all.
fn raised(ran: &Ran) -> (usize, usize) {
    let line = ran.err.lines().find(|line| line.contains("quantized tensors are raised")).unwrap();
    let numbers: Vec<usize> =
        line.split_whitespace().filter_map(|word| word.parse().ok()).take(2).collect();
    (numbers[0], numbers[1])
}

/// Returns the names in a folder, without the hashes beside files.
fn entries(dir: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.ends_with(".hashes")).collect()
}

/// Copies a fixture without its dump.
fn alone(name: &str, dir: &Path) {
    fs_err::create_dir(dir).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(fixture(name).join(file), dir.join(file)).unwrap();
    }
}

#[test]
fn tensors_that_matter_most_are_raised_until_a_divergence_is_met() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama_256", "lfm2_256"] {
        let mix = dir.path().join(format!("{name}-mix.gguf"));
        let met = dir.path().join(format!("{name}-met.gguf"));
        run(convert().arg(fixture(name)).args(["--to", "gguf:q4_k_m", "-o"]).arg(&mix)).code(0);
        let all = cost(&mix, name);
        let goal = all / 8.0;
        let ran = run(&mut to_meet(&fixture(name), &goal.to_string(), &met)).code(0);
        let ran = ran.prints("divergence from the reference").prints("which would cost");
        let reached = cost(&met, name);
        assert!(goal / 8.0 < reached && reached <= goal, "{name}: {reached} of {goal}");
        let old = types(&mix);
        let new = types(&met);
        let finer = old.iter().filter(|(name, ty)| new[*name] != **ty).count();
        let (count, of) = raised(&ran);
        assert_eq!(finer, count, "{name}");
        assert!(0 < count && count < of, "{name}: {count} of {of}");
        assert!(old.iter().all(|(name, ty)| bits(new[name]) >= bits(*ty)), "{name}");
        // Not all of them are raised to the top.
        assert!(old.keys().any(|name| new[name] != old[name] && new[name].is_quantized()));
        run(convert().arg(fixture(name)).arg("--verify").arg(&met)).code(0);
        // A goal that the mix already meets changes nothing.
        let same = dir.path().join(format!("{name}-same.gguf"));
        let ran = run(&mut to_meet(&fixture(name), &(all * 1.01).to_string(), &same)).code(0);
        assert_eq!(raised(&ran), (0, of));
        assert!(fs_err::read(&same).unwrap() == fs_err::read(&mix).unwrap());
    }
    assert!(!entries(dir.path()).iter().any(|name| name.contains("trial")));
}

/// Returns the bytes of a file that meets a target divergence.
fn bytes(out: &Path, flags: &[&str]) -> Vec<u8> {
    run(to_meet(&fixture("llama_256"), "1e-2", out).args(flags)).code(0);
    fs_err::read(out).unwrap()
}

#[test]
fn the_same_choice_comes_out_whoever_measures() {
    let dir = tempfile::tempdir().unwrap();
    let one = bytes(&dir.path().join("one.gguf"), &["--threads", "1", "--slab", "1"]);
    assert!(one == bytes(&dir.path().join("two.gguf"), &["--threads", "2"]));
    // A file name without a hint at the format.
    assert!(one == bytes(&dir.path().join("again"), &["--threads", "2"]));
    for shard in ["1/2", "2/2"] {
        let ran = run(to_meet(&fixture("llama_256"), "1e-2", &dir.path().join("set.gguf"))
            .args(["--shard", shard]));
        ran.code(0).says("one of 2 files cannot be run");
    }
    let first = dir.path().join("set-00001-of-00002.gguf");
    run(convert().arg("merge-check").arg(&first)).code(0).prints("complete: 2 files");
    assert_eq!(types(&first), types(&dir.path().join("one.gguf")));
    assert_eq!(entries(dir.path()).len(), 5);
}

/// Counts the lines of a file, which are none if it is not there.
#[cfg(unix)]
fn line_count(path: &Path) -> usize {
    fs_err::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[cfg(unix)]
#[test]
fn an_interrupted_search_goes_on_with_what_it_measured() {
    let dir = tempfile::tempdir().unwrap();
    let uninterrupted = dir.path().join("whole.gguf");
    let half = dir.path().join("half.gguf");
    run(&mut to_meet(&fixture("lfm2_256"), "1e-2", &uninterrupted)).code(0);
    let journal = dir.path().join("half.gguf.measured.part");
    let mut command = to_meet(&fixture("lfm2_256"), "1e-2", &half);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    while line_count(&journal) < 5 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was stopped");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(line_count(&journal) >= 5);
    assert_eq!(entries(dir.path()).len(), 2, "the file, and what was measured");
    let ran = run(&mut to_meet(&fixture("lfm2_256"), "1e-2", &half)).code(0);
    ran.says("divergences were measured by an earlier run");
    assert!(fs_err::read(half).unwrap() == fs_err::read(uninterrupted).unwrap());
    assert_eq!(entries(dir.path()).len(), 2);
}

/// Runs a conversion that measures on a number of chunks of a text.
fn on_text(command: &mut Command, chunks: &str) -> Ran {
    run(command.arg("--text").arg(fixture("corpus.txt")).args(["--chunks", chunks]))
}

#[test]
fn a_text_stands_in_for_a_dump() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    alone("llama_256", &source);
    let of_text = dir.path().join("a.gguf");
    let of_ids = dir.path().join("b.gguf");
    let ran = on_text(&mut to_meet(&source, "1e-2", &of_text), "2").code(0);
    let ran = ran.says("own f32 run on 2 chunks of 128 tokens");
    let (count, of) = raised(&ran);
    let (_, after) = ran.out.split_once("divergence from the reference ").unwrap();
    let reached: f64 = after.split(',').next().unwrap().parse().unwrap();
    assert!(0 < count && count < of && (1e-3..=1e-2).contains(&reached), "{}", ran.out);
    // Ids are a text too, and a different one.
    let ids: Vec<String> = (1..=64).map(|id| id.to_string()).collect();
    let mut command = to_meet(&source, "1e-2", &of_ids);
    let ran = run(command.args(["--chunk", "32", "--tokens", &ids.join(",")])).code(0);
    ran.says("own f32 run on 2 chunks of 32 tokens");
    assert_ne!(types(&of_text), types(&of_ids));
    let never = dir.path().join("never");
    run(&mut to_meet(&source, "1e-2", &never)).code(2).says("--text FILE");
    // With nothing quantized, a model has no distance from itself.
    on_text(&mut to_meet(&source, "1e-9", &dir.path().join("exact.gguf")), "1").code(0);
    assert_eq!(entries(dir.path()).len(), 4);
}

#[test]
fn what_a_person_asked_for_is_not_raised() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let mut command = to_meet(&fixture("llama_256"), "1e-2", &out);
    run(command.args(["--tensor-type", "attn_q=q5_0", "--output-tensor-type", "q5_k"])).code(0);
    let types = types(&out);
    for layer in 0..3 {
        assert_eq!(types[&format!("blk.{layer}.attn_q.weight")], BlockType::Q50);
    }
    assert_eq!(types["output.weight"], BlockType::Q5K);
    let mut command = to_meet(&fixture("llama_256"), "1e-3", &dir.path().join("never"));
    run(command.args(["--tensor-type", "ffn_down=q4_0"]))
        .code(2)
        .says("with every matrix as it is the divergence is")
        .says("3 tensors of asked or fixed types among them: `blk.0.ffn_down.weight` stays Q4_0");
    assert_eq!(entries(dir.path()), ["out.gguf"]);
}

#[test]
fn goals_that_cannot_be_met_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    for (flags, words) in [
        (&[][..], "cannot be met: with every matrix as it is the divergence is"),
        (&["--plan"], "--plan reads none"),
        (&["--w8a8"], "--w8a8 is for checkpoints of 8 bits"),
        (&["--to", "gguf:q8_0"], "give --to once"),
        (&["--text", "nowhere.txt"], "nowhere.txt"),
        (&["--reference", "nowhere"], "cannot read the reference `nowhere`"),
    ] {
        run(to_meet(&fixture("llama_256"), "1e-9", &out).args(flags)).code(2).says(words);
        assert!(entries(dir.path()).is_empty(), "{:?}", entries(dir.path()));
    }
    let mut command = convert();
    command.arg(fixture("llama_256")).args(["--to", "gguf:f16", "--target-kl", "1e-2", "-o"]);
    run(command.arg(&out)).code(2).says("`gguf:f16` has nothing that could be finer");
    // Existing files are not overwritten, which is checked before anything is measured.
    fs_err::write(&out, "mine").unwrap();
    run(&mut to_meet(&fixture("llama_256"), "1e-2", &out)).code(2).says("is there already");
    fs_err::remove_file(&out).unwrap();
    fs_err::create_dir(dir.path().join("out.gguf.trial")).unwrap();
    run(&mut to_meet(&fixture("llama_256"), "1e-2", &out)).code(2).says("is in the way");
    assert_eq!(entries(dir.path()), ["out.gguf.trial"]);
}
