//! Formats a division as a Slurm script and as a Kubernetes job.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use registry::shell::{flag, shell_line, shell_word};

use crate::division::DividedCommand;
use crate::error::{Error, bail, ensure};

/// Settings of the schedulers that start pieces on machines.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// Program on the machines.
    pub program: String,
    /// Working directory on the machines.
    pub directory: String,
    /// Number of times that a failed piece is tried again.
    pub retries: u16,
    /// Options of sbatch, one line each.
    pub options: Vec<String>,
    /// Container image that has the program.
    pub image: Option<String>,
    /// Volume claim of the shared folder.
    pub claim: Option<String>,
    /// Place of the shared folder in containers; the directory if it is none.
    pub mount: Option<String>,
    /// Number of pieces at a time; all if it is none.
    pub parallel: Option<u16>,
}

/// Formats a script for `sbatch`: an array with a task for each piece.
pub fn slurm(divided: &DividedCommand, scheduler: &SchedulerOptions) -> Result<String, Error> {
    let mut text = format!(
        "#!/bin/bash\n#SBATCH --job-name={}\n#SBATCH --array=0-{}\n#SBATCH --requeue\n",
        name(divided),
        divided.count - 1
    );
    for option in &scheduler.options {
        ensure!(
            !option.contains(|c: char| c.is_control()),
            "the option `option` {option:?}: an option of sbatch is one line"
        );
        let name = option.split(['=', ' ']).next().unwrap_or_default();
        let short = name.starts_with("-a");
        ensure!(
            !short && (name.len() < 4 || !"--array".starts_with(name)),
            "the option `option` {option}: the pieces are the array; for some of them, submit the command again: \
             a piece that is made ends at once"
        );
        let _ = writeln!(text, "#SBATCH {option}");
    }
    text += &shared(divided, scheduler);
    let task = divided.task(&scheduler.program, &[&flag("index-env"), "SLURM_ARRAY_TASK_ID"]);
    let directory = shell_word(&scheduler.directory);
    let _ = writeln!(text, "set -eu\ncd -- {directory}\nexec {}", shell_line(&task));
    Ok(text)
}

/// Formats an indexed job of Kubernetes, which retries each piece by itself.
pub fn kubernetes(divided: &DividedCommand, scheduler: &SchedulerOptions) -> Result<String, Error> {
    let (Some(image), Some(claim)) = (&scheduler.image, &scheduler.claim) else {
        bail!(
            "a Kubernetes job needs the option `image IMAGE`, which has this program, and the option `claim NAME`, the \
             volume claim that holds the shared folder"
        );
    };
    let directory = scheduler.directory.clone();
    let mount = scheduler.mount.clone().unwrap_or_else(|| directory.clone());
    refuse_unmounted(divided, &directory, &mount)?;
    let name = name(divided);
    let count = divided.count;
    let words = divided.task(&scheduler.program, &[&flag("index-env"), "JOB_COMPLETION_INDEX"]);
    let words: Vec<String> = words.iter().map(|word| expanded(word)).collect();
    Ok(format!(
        "{shared}apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {name}\nspec:\n  \
         completionMode: Indexed\n  completions: {count}\n  parallelism: {parallel}\n  \
         backoffLimitPerIndex: {retries}\n  maxFailedIndexes: {count}\n  template:\n    spec:\n      \
         restartPolicy: Never\n      containers:\n        - name: piece\n          image: {image}\n          \
         workingDir: {directory}\n          command: [{words}]\n          volumeMounts:\n            \
         - {{ name: shared, mountPath: {mount} }}\n      volumes:\n        \
         - {{ name: shared, persistentVolumeClaim: {{ claimName: {claim} }} }}\n",
        shared = shared(divided, scheduler),
        parallel = scheduler.parallel.map_or(count, usize::from).min(count),
        retries = scheduler.retries,
        image = quoted(image),
        directory = quoted(&directory),
        words = words.join(", "),
        mount = quoted(&mount),
        claim = quoted(claim),
    ))
}

/// Refuses paths that containers would not see: those outside the mounted folder.
fn refuse_unmounted(divided: &DividedCommand, directory: &str, mount: &str) -> Result<(), Error> {
    for (name, path) in [("directory", directory), ("mount", mount)] {
        ensure!(
            Path::new(path).is_absolute(),
            "the option `{name}` {path}: expected a path that begins with `/`"
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
         holds them all with the option `mount`, or give other paths",
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

/// Returns comments that name the shared paths and the command that joins the pieces.
fn shared(divided: &DividedCommand, scheduler: &SchedulerOptions) -> String {
    let (reads, writes) = divided.shared();
    let merge = divided.merge_line(&scheduler.program);
    format!(
        "# Shared among the machines, below {}: reads {}; writes {}.\n# Afterwards: {}\n",
        quoted(&scheduler.directory),
        list(&reads),
        list(&writes),
        // A line break in a word would end the comment.
        merge.replace('\n', "\\n"),
    )
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
