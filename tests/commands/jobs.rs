//! Tests of `onboard jobs`: pieces of commands, scripts of schedulers, records, and merges.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::tool::{Ran, copy, fixture, json, onboard, run};

const IDS: &str = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28";

/// Returns the words of an importance measurement.
fn imatrix(output: &Path) -> Vec<String> {
    let model = fixture("qwen3_moe").display().to_string();
    let output = output.display().to_string();
    ["imatrix", &model, "--tokens", IDS, "--chunk", "4", "-o", &output].map(Into::into).into()
}

fn jobs(words: &[&str], command: &[String]) -> Ran {
    run(onboard().arg("jobs").args(words).arg("--").args(command))
}

fn command(words: &str) -> Vec<String> {
    words.split(' ').map(str::to_owned).collect()
}

#[test]
fn plans_name_pieces_and_shared_paths() {
    let model = fixture("lfm2").display().to_string();
    let convert = command(&format!("convert {model} --to gguf:q8_0 -o out.gguf"));
    let ran = jobs(&["plan", "-n", "2"], &convert).code(0);
    let ran = ran.prints(&format!(
        "piece 2 of 2: onboard convert {model} --to gguf:q8_0 -o out.gguf --shard 2/2 --resume\n"
    ));
    let ran = ran.prints(&format!("shared paths that are read: {model}\n"));
    ran.prints("shared paths that are written: ., out.gguf.jobs\n")
        .prints("jobs merge --pieces 2 --state out.gguf.jobs -- convert");
    // Words behind `--` are of the reference script.
    let dump = command(&format!("parity dump {model} -o D/ --layerwise -- --greedy 0"));
    jobs(&["plan", "-n", "3"], &dump).code(0).prints(&format!(
        "piece 3 of 3: onboard parity dump {model} -o D/ --layerwise --pieces D.pieces --piece 3/3 -- --greedy 0\n"
    ));
    let measure = command(&format!("onboard imatrix {model} --tokens 1 --output=m.gguf --force"));
    jobs(&["plan", "-n", "2"], &measure).code(0).prints(&format!(
        "piece 1 of 2: onboard imatrix {model} --tokens 1 --output=m.gguf.1-of-2.part --force --shard 1/2\n"
    ));
    let plan = json(&jobs(&["plan", "-n", "2", "--json"], &measure).code(0).out);
    assert_eq!(plan["schema"], "onboard-jobs/1");
    assert_eq!(plan["pieces"].as_array().unwrap().len(), 2);
    assert_eq!(plan["pieces"][1]["product"], "m.gguf.2-of-2.part");
    assert_eq!(plan["reads"], serde_json::json!([model]));
}

#[test]
fn commands_that_cannot_be_divided_are_refused() {
    let model = fixture("lfm2").display().to_string();
    for (words, error) in [
        ("bench M".to_owned(), "`bench` cannot be divided; expected one of `convert`"),
        (format!("convert {model} --to gguf:q8_0"), "has 0 outputs"),
        (format!("convert {model} --to a --to b -o x -o y"), "has 2 outputs"),
        (
            format!("convert {model} --to gguf:q8_0 -o x --shard 1/2"),
            "--shard is no option of a command",
        ),
        (format!("convert {model} --to gguf:q8_0 -o x --plan"), "--plan is no option of a command"),
        (format!("parity dump {model} -o D --judge"), "--judge is no option of a command"),
        (format!("imatrix {model} --tokens 1"), "--output <FILE>"),
        (format!("convert {model} --to gguf:q8_0 -o x --no-such-flag"), "cannot be run"),
        (format!("convert {model} --to gguf:q8_0 -o -"), "has to be a file or a folder"),
        (format!("parity dump {model} -o D --engine native"), "cannot be divided as it is given"),
        ("imatrix merge a b -o m".to_owned(), "cannot be divided as it is given"),
    ] {
        jobs(&["plan", "-n", "2"], &command(&words)).code(2).says(error);
    }
    jobs(&["plan", "-n", "0"], &command("bench M")).code(2);
}

/// A file name with all that shells, YAML and comments take for syntax.
const NAME: &str = "it's $(touch bad) `x` \"q\"\n#: {a}&.gguf";

#[test]
fn slurm_scripts_run_any_words() {
    let dir = tempfile::tempdir().unwrap();
    let words = imatrix(&dir.path().join(NAME));
    let program = env!("CARGO_BIN_EXE_onboard");
    let place = dir.path().display().to_string();
    let options = ["plan", "-n", "2", "--on", "slurm", "--option=--partition=long", "--directory"];
    let ran = jobs(&[&options[..], &[&place, "--program", program]].concat(), &words).code(0);
    let ran = ran.prints("#SBATCH --array=0-1\n").prints("#SBATCH --partition=long\n");
    let script = dir.path().join("script");
    fs_err::write(&script, &ran.out).unwrap();
    for index in ["0", "1"] {
        let mut bash = std::process::Command::new("bash");
        run(bash.arg(&script).env("SLURM_ARRAY_TASK_ID", index)).code(0);
    }
    jobs(&["merge", "-n", "2"], &words).code(0).prints("measured on 7 chunks");
    assert!(dir.path().join(NAME).exists() && !dir.path().join("bad").exists());
    jobs(&["plan", "-n", "2", "--on", "slurm", "--option", "a\nb"], &words)
        .code(2)
        .says("one line");
    for option in ["--array=0-9", "--arr=1", "-a0-9"] {
        let option = format!("--option={option}");
        let ran = jobs(&["plan", "-n", "2", "--on", "slurm", &option], &words);
        ran.code(2).says("the pieces are the array");
    }
    jobs(&["plan", "-n", "2", "--on", "slurm", "--option=--account=a"], &words).code(0);
}

#[test]
fn kubernetes_jobs_have_any_words() {
    let dir = tempfile::tempdir().unwrap();
    let words = imatrix(&dir.path().join(NAME));
    let on = ["plan", "-n", "2", "--on", "kubernetes", "--program", "/bin/onboard", "--mount", "/"];
    jobs(&on, &words).code(2).says("--image IMAGE");
    let more = ["--image", "me/onboard:1", "--claim", "data", "--parallel", "1"];
    let text = jobs(&[&on[..], &more].concat(), &words).code(0).out;
    for line in [
        "kind: Job",
        "  completionMode: Indexed",
        "  completions: 2",
        "  parallelism: 1",
        "  backoffLimitPerIndex: 3",
    ] {
        assert!(text.lines().any(|written| written == line), "no `{line}` in {text}");
    }
    // The words are a list of JSON, in which Kubernetes reads `$$` as `$`.
    let line = text.lines().find_map(|line| line.trim().strip_prefix("command: ")).unwrap();
    let escaped: Vec<String> = serde_json::from_str(line).unwrap();
    let command: Vec<String> = escaped.iter().map(|word| word.replace("$$", "$")).collect();
    let at = command.iter().position(|word| word == "--").unwrap();
    assert_eq!(command[at + 1..], words);
    assert_eq!(command[..3], ["/bin/onboard", "jobs", "run"]);
    assert!(command[..at].windows(2).any(|two| two == ["--index-env", "JOB_COMPLETION_INDEX"]));
    // Nothing but comments stands before the object.
    let head = text.split("apiVersion").next().unwrap();
    assert!(head.lines().all(|line| line.starts_with('#')), "{head}");
}

#[test]
fn pieces_end_with_the_bytes_of_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one.gguf");
    let many = dir.path().join("many.gguf");
    run(onboard().args(imatrix(&one))).code(0);
    let words = imatrix(&many);
    jobs(&["status", "-n", "3"], &words).code(1).prints("0 of 3 pieces are made; left: 1-3");
    jobs(&["run", "-n", "3", "--piece", "2"], &words).code(0).says("piece 2 of 3 is made");
    jobs(&["run", "-n", "3", "--piece", "2"], &words).code(0).prints("is made already");
    jobs(&["status", "-n", "3"], &words).code(1).prints("1 of 3 pieces are made; left: 1, 3");
    jobs(&["merge", "-n", "3"], &words).code(2).says("2 of 3 pieces are not made: 1, 3");
    jobs(&["run", "-n", "3", "--piece", "4"], &words).code(2).says("piece 4 is not there");
    let by_index = ["jobs", "run", "-n", "3", "--index-env", "TASK", "--"];
    run(onboard().args(by_index).args(&words).env("TASK", "0")).code(0);
    run(onboard().args(by_index).args(&words).env("TASK", "x")).code(2).says("`TASK` is `x`");
    run(onboard().args(by_index).args(&words).env("TASK", "3")).code(2).says("is not there");
    // All that are left.
    jobs(&["run", "-n", "3"], &words).code(0);
    jobs(&["status", "-n", "3"], &words).code(0).prints("all 3 pieces are made");
    // A piece whose product is gone is not made.
    let product = PathBuf::from(format!("{}.3-of-3.part", many.display()));
    fs_err::remove_file(&product).unwrap();
    let state = json(&jobs(&["status", "-n", "3", "--json"], &words).code(1).out);
    assert_eq!(state["left"], serde_json::json!([3]));
    jobs(&["run", "-n", "3"], &words).code(0);
    jobs(&["merge", "-n", "3"], &words).code(0);
    assert!(fs_err::read(&one).unwrap() == fs_err::read(&many).unwrap(), "the bytes differ");
}

#[test]
fn sharded_conversions_are_checked_as_a_set() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one.gguf");
    let many = dir.path().join("many.gguf");
    let model = fixture("lfm2").display().to_string();
    let words = command(&format!("convert {model} --to gguf:q8_0 -o {}", many.display()));
    for n in ["1/2", "2/2"] {
        let convert = ["convert", &model, "--to", "gguf:q8_0", "-o"];
        run(onboard().args(convert).arg(&one).args(["--shard", n])).code(0);
    }
    jobs(&["run", "-n", "2"], &words).code(0);
    jobs(&["merge", "-n", "2"], &words).code(0).prints("complete: 2 files");
    for n in ["1", "2"] {
        let [one, many] = ["one", "many"].map(|stem| {
            fs_err::read(dir.path().join(format!("{stem}-0000{n}-of-00002.gguf"))).unwrap()
        });
        assert!(one == many, "file {n} differs");
    }
    fs_err::remove_file(dir.path().join("many-00002-of-00002.gguf")).unwrap();
    let gone = "many-00002-of-00002.gguf` is gone";
    jobs(&["status", "-n", "2"], &words).code(1).prints(gone);
    jobs(&["merge", "-n", "2"], &words).code(2).says(gone);
    jobs(&["run", "-n", "2"], &words).code(0).says(gone);
    jobs(&["merge", "-n", "2"], &words).code(0);
}

#[test]
fn records_of_other_divisions_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.gguf");
    let words = imatrix(&output);
    jobs(&["run", "-n", "2"], &words).code(0);
    // Another number of pieces, and another command.
    jobs(&["merge", "-n", "3"], &words).code(2).says("into 2 pieces, not 3");
    let other = [&words[..], &["--dtype".to_owned(), "f32".to_owned()]].concat();
    jobs(&["status", "-n", "2"], &other).code(2).says("of another command");
    jobs(&["run", "-n", "2", "--piece", "1"], &other).code(2).says("of another command");
    // A record that was copied.
    let state = PathBuf::from(format!("{}.jobs", output.display()));
    let second = state.join("piece-2-of-2.json");
    let record = fs_err::read(&second).unwrap();
    fs_err::copy(state.join("piece-1-of-2.json"), &second).unwrap();
    jobs(&["merge", "-n", "2"], &words).code(2).says("a copy under another name");
    fs_err::write(&second, b"{").unwrap();
    jobs(&["merge", "-n", "2"], &words).code(2).says("no record of a piece");
    fs_err::write(&second, record).unwrap();
    // A product that was copied.
    let first = dir.path().join("m.gguf.1-of-2.part");
    fs_err::copy(first, dir.path().join("m.gguf.2-of-2.part")).unwrap();
    jobs(&["merge", "-n", "2"], &words).code(2).says("2-of-2.part` ");
    assert!(!output.exists());
    // A record that is of no piece.
    fs_err::write(state.join("piece-9-of-2.json"), b"").unwrap();
    jobs(&["status", "-n", "2"], &words).code(2).says("whose pieces are 1 to 2; remove it");
}

#[test]
fn a_piece_that_fails_is_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.gguf");
    let mut words = imatrix(&output);
    words[1] = dir.path().join("none").display().to_string();
    jobs(&["run", "-n", "2"], &words).code(2);
    jobs(&["status", "-n", "2"], &words).code(1).prints("0 of 2 pieces");
    assert!(!dir.path().join("m.gguf.jobs").exists());
}

#[test]
fn scripts_are_given_to_the_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let words = imatrix(&dir.path().join("m.gguf"));
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    for (name, scheduler) in [("sbatch", "slurm"), ("kubectl", "kubernetes")] {
        let file = dir.path().join(name);
        let given = dir.path().join("given");
        program(&file, &format!("#!/bin/sh\ncat >'{}'\n", given.display()));
        let more =
            ["-n", "2", "--on", scheduler, "--image", "i", "--claim", "c", "--mount", "/", "--"];
        let mut submit = onboard();
        submit.args(["jobs", "submit"]).args(more).args(&words).env("PATH", &path);
        run(&mut submit).code(0).prints("when all pieces are made: ");
        let script = run(onboard().args(["jobs", "plan"]).args(more).args(&words)).code(0).out;
        assert_eq!(fs_err::read_to_string(&given).unwrap().trim_end(), script.trim_end());
        program(&file, "#!/bin/sh\necho no >&2\nexit 3\n");
        run(&mut submit).code(2).says(&format!("`{name}` failed"));
        submit.env("PATH", "/nonexistent");
        run(&mut submit).code(2).says(&format!("cannot start `{name}`"));
    }
}

/// Writes an executable script.
fn program(path: &Path, text: &str) {
    fs_err::write(path, text).unwrap();
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn pieces_of_a_dump_are_asked_for_and_ignored_signals_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    // A reference script that writes its arguments and the record of its piece.
    let python = dir.path().join("python");
    let text = "#!/bin/sh\ncase \"$1\" in -c) exit 0;; esac\nshift\necho \"$*\" >>\"$(dirname \"$0\")/seen\"\n\
                mkdir -p \"$3.pieces\"\necho a >\"$3.pieces/a\"\n\
                echo '{\"files\": [\"a\"]}' >\"$3.pieces/piece-2-of-2.json\"\n";
    program(&python, text);
    let output = dir.path().join("D").display().to_string();
    let model = fixture("lfm2").display().to_string();
    let dump = command(&format!("parity dump {model} -o {output} --layerwise"));
    // Workers of Ray ignore SIGCHLD.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' CHLD; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_onboard")]);
    shell.args(["jobs", "run", "-n", "2", "--piece", "2", "--"]).args(&dump);
    run(shell.env("ONBOARD_PYTHON", &python)).code(0).says("piece 2 of 2 is made");
    let seen = fs_err::read_to_string(dir.path().join("seen")).unwrap();
    let words = format!("{model} -o {output} --layerwise --pieces {output}.pieces --piece 2/2\n");
    assert_eq!(seen, words);
    jobs(&["status", "-n", "2"], &dump).code(1).prints("left: 1");
    // The files that the script lists belong to the piece.
    fs_err::write(dir.path().join("D.pieces/a"), "b\n").unwrap();
    jobs(&["status", "-n", "2"], &dump).code(1).prints("D.pieces/a` is damaged");
    let mut again = onboard();
    again.args(["jobs", "run", "-n", "2", "--piece", "2", "--"]).args(&dump);
    again.env("ONBOARD_PYTHON", &python);
    program(&python, text);
    run(&mut again).code(0).says("piece 2 of 2 is made again");
    jobs(&["status", "-n", "2"], &dump).code(1).prints("1 of 2 pieces are made; left: 1\n");
    fs_err::remove_file(dir.path().join("D.pieces/a")).unwrap();
    program(&python, &text.replace("[\"a\"]", "[\"../a\"]"));
    run(&mut again).code(2).says("expected the name of a file");
    program(&python, &text.replace("\"files\"", "\"parts\""));
    run(&mut again).code(2).says("no record of a finished piece");
    // A dump in the place of the output would be replaced by the merge.
    fs_err::create_dir(dir.path().join("D")).unwrap();
    fs_err::write(dir.path().join("D/manifest.json"), "{}").unwrap();
    jobs(&["run", "-n", "2", "--piece", "1"], &dump).code(2).says("`").says("is there already");
}

/// Flips a bit near the end of a file.
fn damage(path: &Path, from_end: usize) {
    let mut bytes = fs_err::read(path).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 1;
    fs_err::write(path, bytes).unwrap();
}

#[test]
fn damaged_pieces_are_found_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let model = fixture("lfm2").display().to_string();
    let folder = dir.path();
    let place = folder.join("c.gguf").display().to_string();
    let convert = command(&format!("convert {model} --to gguf:q8_0 -o {place}"));
    let measure = imatrix(&folder.join("m.gguf"));
    for (words, product, from_end) in [
        (&convert, folder.join("c-00001-of-00002.gguf"), 5000),
        (&measure, folder.join("m.gguf.1-of-2.part"), 50),
    ] {
        jobs(&["run", "-n", "2"], words).code(0);
        let product_bytes = fs_err::read(&product).unwrap();
        damage(&product, from_end);
        jobs(&["status", "-n", "2"], words).code(1).prints("left: 1\n").prints("is damaged");
        jobs(&["merge", "-n", "2"], words).code(2).says("is damaged");
        jobs(&["run", "-n", "2"], words).code(0).says("piece 1 of 2 is made again");
        assert!(fs_err::read(&product).unwrap() == product_bytes);
        fs_err::write(&product, &product_bytes[..product_bytes.len() / 2]).unwrap();
        let state = json(&jobs(&["status", "-n", "2", "--json"], words).code(1).out);
        assert!(state["why"][0].as_str().unwrap().contains("were written"), "{state}");
        jobs(&["run", "-n", "2", "--piece", "1"], words).code(0);
        assert!(fs_err::read(&product).unwrap() == product_bytes);
        jobs(&["merge", "-n", "2"], words).code(0);
    }
}

#[test]
fn pieces_of_changed_inputs_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    copy("qwen3_moe", &model);
    let mut words = imatrix(&dir.path().join("m.gguf"));
    words[1] = model.display().to_string();
    jobs(&["run", "-n", "2", "--piece", "1"], &words).code(0);
    damage(&model.join("model.safetensors"), 100);
    jobs(&["status", "-n", "2"], &words).code(1).prints("left: 1-2\n").prints("has changed since");
    jobs(&["run", "-n", "2"], &words).code(0).says("piece 1 of 2 is made again");
    jobs(&["merge", "-n", "2"], &words).code(0);
    // An output in the way is found before pieces are computed.
    fs_err::remove_file(dir.path().join("m.gguf.1-of-2.part")).unwrap();
    jobs(&["run", "-n", "2"], &words).code(2).says("m.gguf` is there already");
    assert!(!dir.path().join("m.gguf.1-of-2.part").exists());
}

#[test]
fn another_division_is_refused_before_it_computes() {
    let dir = tempfile::tempdir().unwrap();
    let words = imatrix(&dir.path().join("m.gguf"));
    jobs(&["run", "-n", "3", "--piece", "1"], &words).code(0);
    jobs(&["run", "-n", "2", "--piece", "1"], &words).code(2).says("into 3 pieces, not 2");
    assert!(!dir.path().join("m.gguf.1-of-2.part").exists());
    let more = [&words[..], &["--chunks".to_owned(), "6".to_owned()]].concat();
    jobs(&["run", "-n", "3", "--piece", "2"], &more).code(2).says("of another command");
    assert!(!dir.path().join("m.gguf.2-of-3.part").exists());
    // The order of the words does not matter.
    let (last, first) = words.split_at(4);
    let turned = [&words[..1], &first[..2], &last[1..], &first[2..]].concat();
    jobs(&["run", "-n", "3", "--piece", "2"], &turned).code(0).says("piece 2 of 3 is made");
    jobs(&["status", "-n", "3"], &words).code(1).prints("left: 3\n");
}

#[test]
fn records_that_cannot_be_kept_stop_a_piece_before_it_computes() {
    let dir = tempfile::tempdir().unwrap();
    let words = imatrix(&dir.path().join("m.gguf"));
    let file = dir.path().join("file").display().to_string();
    fs_err::write(&file, "x").unwrap();
    for mode in ["run", "status", "merge"] {
        jobs(&[mode, "-n", "2", "--state", &file], &words).code(2).says("a folder of records");
    }
    assert!(!dir.path().join("m.gguf.1-of-2.part").exists());
    // A record names only files of its own command.
    let other = dir.path().join("other");
    fs_err::write(&other, "x").unwrap();
    jobs(&["run", "-n", "2", "--piece", "1"], &words).code(0);
    let record = dir.path().join("m.gguf.jobs/piece-1-of-2.json");
    let text = fs_err::read_to_string(&record).unwrap();
    for wrong in [other.clone(), dir.path().join("m.d/../other")] {
        let product = dir.path().join("m.gguf.1-of-2.part").display().to_string();
        fs_err::write(&record, text.replace(&product, &wrong.display().to_string())).unwrap();
        jobs(&["run", "-n", "2"], &words).code(2).says("is no file of this command");
    }
    assert!(other.exists());
}

#[test]
fn containers_see_all_paths() {
    planned(&[], "m.gguf")
        .code(0)
        .says("note: `models/m` is not on this machine")
        .prints("\"t.txt\"");
    planned(&[], "../m.gguf").code(2).says("lie outside: `/data`, `/data/m.gguf.jobs`");
    planned(&["--mount", "/data"], "../m.gguf").code(0);
    planned(&["--mount", "/other"], "m.gguf").code(2).says("`/data/runs/models/m`");
    planned(&["--mount", "rel"], "m.gguf").code(2).says("--mount rel: expected a path that begins");
    planned(&["--parallel", "0"], "m.gguf").code(2).says("--parallel");
}

/// Plans a measurement for Kubernetes in the folder `/data/runs`.
fn planned(more: &[&str], output: &str) -> Ran {
    let on = ["plan", "-n", "2", "--on", "kubernetes", "--image", "i", "--claim", "c"];
    let words = command(&format!("imatrix models/m --text=t.txt -o {output}"));
    jobs(&[&on[..], &["--directory", "/data/runs"], more].concat(), &words)
}

#[test]
fn a_stopped_dump_leaves_no_folder_of_scripts() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    // Leaves a file beside the scripts, as Python does with compiled modules, and ends with its parent, as the script
    // does.
    let text = "#!/bin/sh\ncase \"$1\" in -c) exit 0;; esac\n\
                touch \"$(dirname \"$1\")/more\" \"$(dirname \"$0\")/begun\"\n\
                while kill -0 \"$ONBOARD_PARENT\"; do sleep 0.1; done\n";
    program(&python, text);
    let scratch = dir.path().join("scratch");
    fs_err::create_dir(&scratch).unwrap();
    let mut dump = onboard();
    dump.args(["parity", "dump"]).arg(fixture("lfm2")).arg("-o").arg(dir.path().join("D"));
    let mut child = dump.env("ONBOARD_PYTHON", &python).env("TMPDIR", &scratch).spawn().unwrap();
    while !dir.path().join("begun").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let script = fs_err::read_dir(&scratch).unwrap().next().unwrap().unwrap().path();
    assert!(script.join("more").exists());
    let id = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(fs_err::read_dir(&scratch).unwrap().next().is_none());
}

#[test]
fn a_python_without_ray_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let words = imatrix(&dir.path().join("m.gguf"));
    // A folder with a module of this name that cannot be imported.
    fs_err::write(dir.path().join("ray.py"), "raise ImportError\n").unwrap();
    let mut submit = onboard();
    submit
        .args(["jobs", "submit", "-n", "2", "--on", "ray", "--python", "python3", "--"])
        .args(&words);
    run(submit.env("PYTHONPATH", dir.path())).code(2).says("pip install ray");
}
