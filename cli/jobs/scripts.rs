//! Formats a division as a Slurm script and as a Kubernetes job.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, ensure};

use super::SchedulerArgs;
use super::division::DividedCommand;
use crate::launch::shell;

/// Formats a script for `sbatch`: an array with a task for each piece.
pub(super) fn slurm(divided: &DividedCommand, args: &SchedulerArgs) -> Result<String> {
    let mut text = format!(
        "#!/bin/bash\n#SBATCH --job-name={}\n#SBATCH --array=0-{}\n#SBATCH --requeue\n",
        name(divided),
        divided.count - 1
    );
    for option in &args.options {
        ensure!(
            !option.contains(|c: char| c.is_control()),
            "--option {option:?}: an option of sbatch is one line"
        );
        let name = option.split(['=', ' ']).next().unwrap_or_default();
        let short = name.starts_with("-a");
        ensure!(
            !short && (name.len() < 4 || !"--array".starts_with(name)),
            "--option {option}: the pieces are the array; for some of them, submit the command again: \
             a piece that is made ends at once"
        );
        let _ = writeln!(text, "#SBATCH {option}");
    }
    text += &shared(divided, args)?;
    let task = task(divided, args, &["--index-env", "SLURM_ARRAY_TASK_ID"])?;
    let words: Vec<String> = task.iter().map(|word| shell(word)).collect();
    let _ =
        writeln!(text, "set -eu\ncd -- {}\nexec {}", shell(&args.directory()?), words.join(" "));
    Ok(text)
}

/// Formats an indexed job of Kubernetes, which retries each piece by itself.
pub(super) fn kubernetes(divided: &DividedCommand, args: &SchedulerArgs) -> Result<String> {
    let (Some(image), Some(claim)) = (&args.image, &args.claim) else {
        anyhow::bail!(
            "a Kubernetes job needs --image IMAGE, which has this program, and --claim NAME, the \
             volume claim that holds the shared folder"
        );
    };
    let directory = args.directory()?;
    let mount = args.mount.clone().unwrap_or_else(|| directory.clone());
    refuse_unmounted(divided, &directory, &mount)?;
    let name = name(divided);
    let count = divided.count;
    let words = task(divided, args, &["--index-env", "JOB_COMPLETION_INDEX"])?;
    let words: Vec<String> = words.iter().map(|word| expanded(word)).collect();
    Ok(format!(
        "{shared}apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {name}\nspec:\n  \
         completionMode: Indexed\n  completions: {count}\n  parallelism: {parallel}\n  \
         backoffLimitPerIndex: {retries}\n  maxFailedIndexes: {count}\n  template:\n    spec:\n      \
         restartPolicy: Never\n      containers:\n        - name: piece\n          image: {image}\n          \
         workingDir: {directory}\n          command: [{words}]\n          volumeMounts:\n            \
         - {{ name: shared, mountPath: {mount} }}\n      volumes:\n        \
         - {{ name: shared, persistentVolumeClaim: {{ claimName: {claim} }} }}\n",
        shared = shared(divided, args)?,
        parallel = args.parallel.map_or(count, usize::from).min(count),
        retries = args.retries,
        image = quoted(image),
        directory = quoted(&directory),
        words = words.join(", "),
        mount = quoted(&mount),
        claim = quoted(claim),
    ))
}

/// Refuses paths that containers would not see: those outside the mounted folder.
fn refuse_unmounted(divided: &DividedCommand, directory: &str, mount: &str) -> Result<()> {
    for (flag, path) in [("--directory", directory), ("--mount", mount)] {
        ensure!(
            Path::new(path).is_absolute(),
            "{flag} {path}: expected a path that begins with `/`"
        );
    }
    let mounted = lexical(Path::new(mount));
    let (_, writes) = divided.shared();
    let reads = divided.reads.iter().filter(|read| !read.is_program).map(|read| &read.path);
    let outside = reads
        .chain(&writes)
        .map(|path| lexical(&Path::new(directory).join(path)))
        .chain([lexical(Path::new(directory))])
        .filter(|path| !path.starts_with(&mounted));
    let outside: Vec<String> = outside.map(|path| format!("`{}`", path.display())).collect();
    ensure!(
        outside.is_empty(),
        "the containers have only `{mount}` of the shared folder, and these paths lie outside: {}; name a folder that \
         holds them all with --mount, or give other paths",
        outside.join(", ")
    );
    Ok(())
}

/// Resolves `.` and `..` in a path without a look at the file system, which may be another machine's.
fn lexical(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Returns the words of a task, which chooses its piece by `which`.
pub(super) fn task(
    divided: &DividedCommand,
    args: &SchedulerArgs,
    which: &[&str],
) -> Result<Vec<String>> {
    let count = divided.count.to_string();
    let state = divided.state.display().to_string();
    let mut words = vec![args.program()?];
    words.extend(["jobs", "run", "--pieces", &count, "--state", &state].map(str::to_owned));
    words.extend(which.iter().map(|word| (*word).to_owned()));
    words.push("--".to_owned());
    words.extend(divided.words.clone());
    Ok(words)
}

/// Returns comments that name the shared paths and the command that joins the pieces.
fn shared(divided: &DividedCommand, args: &SchedulerArgs) -> Result<String> {
    let (reads, writes) = divided.shared();
    let merge = super::merge_line(divided, args)?;
    Ok(format!(
        "# Shared among the machines, below {}: reads {}; writes {}.\n# Afterwards: {}\n",
        quoted(&args.directory()?),
        list(&reads),
        list(&writes),
        // A line break in a word would end the comment.
        merge.replace('\n', "\\n"),
    ))
}

/// Returns paths in quotes, with commas.
fn list(paths: &[String]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| quoted(path)).collect();
    shown.join(", ")
}

/// Returns a name of at most 63 lower-case letters, digits and dashes.
fn name(divided: &DividedCommand) -> String {
    format!("onboard-{}-{}", divided.kind.name.join("-"), &divided.identity()[..8])
}

/// Quotes a text for YAML: JSON, with the characters escaped that YAML does not print.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}') {
            let _ = write!(escaped, "\\u{:04x}", c as u32);
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Quotes a word of a command of Kubernetes, which replaces `$(NAME)` and reads `$$` as `$`.
fn expanded(word: &str) -> String {
    quoted(&word.replace('$', "$$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_for_yaml() {
        for (text, json) in [
            ("a b", "\"a b\""),
            ("a\"\\", r#""a\"\\""#),
            ("a\nb", r#""a\nb""#),
            ("\u{2028}\u{85}", r#""\u2028\u0085""#),
            ("- x: #y", "\"- x: #y\""),
        ] {
            assert_eq!(quoted(text), json);
        }
        assert_eq!(expanded("$(HOME)$$"), r#""$$(HOME)$$$$""#);
    }
}
