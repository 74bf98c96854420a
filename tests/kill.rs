//! A conversion that is killed at any moment leaves nothing that looks finished, and gives the same
//! bytes when it is resumed, with any number of threads.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::tool::{convert, fixture, run};

/// So many times, at moments spread over the whole conversion.
const KILLS: usize = 10;

fn command(output: &Path, threads: usize) -> Command {
    with_slabs(output, threads, 1)
}

fn with_slabs(output: &Path, threads: usize, slab: usize) -> Command {
    let mut command = convert();
    command.arg(fixture("lfm2_256")).args(["--to", "gguf:q4_k_m", "-o"]).arg(output);
    command.args(["--slab", &slab.to_string(), "--threads", &threads.to_string()]);
    command
}

fn lines(journal: &Path) -> usize {
    fs_err::read_to_string(journal).map_or(0, |text| text.lines().count())
}

/// Waits until the journal has so many lines, or the process has ended.
fn wait(child: &mut Child, journal: &Path, enough: usize) {
    while lines(journal) < enough && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(300));
    }
}

#[test]
fn killed_conversions_resume_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.gguf");
    run(&mut command(&whole, 1)).code(0);
    let expected = fs_err::read(&whole).unwrap();
    // Slabs of another size give the same bytes too.
    let other = dir.path().join("other.gguf");
    run(&mut with_slabs(&other, 2, 64)).code(0);
    assert_eq!(fs_err::read(&other).unwrap(), expected);
    let numbers = 1_361_280;
    let (mut unfinished, mut seed) = (0, 7_usize);
    for kill in 0..KILLS {
        let output = dir.path().join(format!("killed-{kill}.gguf"));
        let journal = dir.path().join(format!("killed-{kill}.gguf.part.journal"));
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let enough = kill * numbers / 1000 / KILLS + (seed >> 33) % 97;
        let mut child = command(&output, 1 + kill % 2)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait(&mut child, &journal, enough);
        child.kill().unwrap();
        child.wait().unwrap();
        if !output.exists() {
            unfinished += 1;
            let resume = if journal.exists() { &["--resume"][..] } else { &[] };
            run(command(&output, 2 - kill % 2).args(resume)).code(0);
        }
        assert_eq!(fs_err::read(&output).unwrap(), expected, "kill {kill} after {enough} slabs");
        let names = fs_err::read_dir(dir.path()).unwrap().flatten();
        let left = names.filter(|name| name.path().to_string_lossy().contains(".part")).count();
        assert_eq!(left, 0, "kill {kill} leaves unfinished files");
    }
    assert!(unfinished >= KILLS / 2, "only {unfinished} of {KILLS} were killed in time");
}
