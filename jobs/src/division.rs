//! Divides a command line into pieces.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use registry::shell::{flag, shell_line, shell_word};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, StepContext as _, bail, ensure};
use crate::kinds::{self, DivisibleCommand};
use crate::words::{ParsedWords, PathArgument};

/// Program whose commands are divided.
#[derive(Debug, Clone, Copy)]
pub struct CommandHost {
    /// Commands that can be divided.
    pub kinds: &'static [DivisibleCommand],
    /// Parses the words of a command, which begin behind the program's name; an error is one line.
    pub parse: fn(&[String]) -> Result<ParsedWords, Error>,
    /// Writes a record: beside its final path, then renamed.
    pub write: fn(&Path, &[u8]) -> io::Result<()>,
}

/// Command line that is divided into pieces.
///
/// ```
/// use onboard_jobs::{CommandHost, DividedCommand, Error, ParsedWords};
///
/// fn parse(words: &[String]) -> Result<ParsedWords, Error> {
///     Ok(ParsedWords { outputs: vec![words.last().unwrap().clone()], ..ParsedWords::default() })
/// }
///
/// let host = CommandHost { kinds: &[], parse, write: |path, bytes| std::fs::write(path, bytes) };
/// let words = ["imatrix", "model", "--text", "t.txt", "-o", "m.gguf"].map(str::to_owned);
/// assert!(DividedCommand::new(host, &words[..1], 2, None).is_err(), "no command can be divided");
/// ```
#[derive(Debug)]
pub struct DividedCommand {
    pub(crate) host: CommandHost,
    /// Kind of the command.
    pub kind: &'static DivisibleCommand,
    /// Words of the command, without the program's name.
    pub words: Vec<String>,
    /// Path that the whole command writes.
    pub output: String,
    /// Paths that the command reads.
    pub reads: Vec<PathArgument>,
    /// Values of the arguments, whatever their order and spelling.
    values: BTreeMap<String, Vec<String>>,
    /// Number of pieces.
    pub count: usize,
    /// Folder of the records of finished pieces.
    pub state: PathBuf,
}

impl DividedCommand {
    /// Divides a command. Each piece has to be a command that can be run.
    pub fn new(
        host: CommandHost,
        command: &[String],
        count: usize,
        state: Option<&Path>,
    ) -> Result<Self, Error> {
        let has_own_name = command.first().is_some_and(|word| is_own_name(word));
        let words = command[usize::from(has_own_name)..].to_vec();
        let Some(kind) = host.kinds.iter().find(|kind| kind.begins(&words)) else {
            bail!(
                "`{}` cannot be divided; expected one of {}",
                words.first().map_or("", String::as_str),
                kinds::names(host.kinds)
            );
        };
        let parsed = (host.parse)(&words)
            .with_context(|| format!("the command `{}` cannot be run", words.join(" ")))?;
        for flag in kind.refused {
            ensure!(
                !parsed.values.contains_key(*flag),
                "--{flag} is no option of a command that is divided; leave it out"
            );
        }
        let [output] = &parsed.outputs[..] else {
            bail!(
                "the command has {} outputs, and pieces need exactly one; give -o PATH once",
                parsed.outputs.len()
            );
        };
        let output = output.trim_end_matches('/').to_owned();
        ensure!(!output.is_empty() && output != "-", "the output has to be a file or a folder");
        let state = state.map_or_else(|| format!("{output}.jobs").into(), Path::to_owned);
        let reads = parsed.reads;
        let values = parsed.values;
        let divided = Self { host, kind, words, output, reads, values, count, state };
        (host.parse)(&divided.piece(1)?).with_context(|| {
            format!("`{}` cannot be divided as it is given", divided.kind.name.join(" "))
        })?;
        Ok(divided)
    }

    /// Returns the words of a piece, which is counted from 1.
    pub fn piece(&self, number: usize) -> Result<Vec<String>, Error> {
        let words = match self.kind.piece_output {
            Some(template) => {
                with_output(&self.words, &self.output, &self.filled(template, number))?
            }
            None => self.words.clone(),
        };
        let own_words = words.iter().take_while(|word| *word != "--");
        let templates = self.kind.piece.iter().filter_map(|word| match word.strip_prefix('?') {
            Some(flag) => own_words.clone().all(|word| word != flag).then_some(flag),
            None => Some(*word),
        });
        let more: Vec<String> = templates.map(|word| self.filled(word, number)).collect();
        Ok(with_more(&words, &more))
    }

    /// Returns the file that is there once a piece is made, if its name is known.
    pub(crate) fn product(&self, number: usize) -> Option<PathBuf> {
        self.kind.product.map(|template| self.filled(template, number).into())
    }

    /// Returns the words of the command that joins the pieces.
    pub fn merge(&self) -> Result<Vec<String>, Error> {
        let mut words = Vec::new();
        let mut more = Vec::new();
        for word in self.kind.merge {
            match *word {
                "{command}" => words.extend(self.words.clone()),
                "{products}" => {
                    let all = (1..=self.count).filter_map(|number| self.product(number));
                    more.extend(all.map(|path| path.display().to_string()));
                }
                "{set}" => more.push(self.first_of_set()?),
                "{force}" if !self.words.contains(&flag("force")) => {}
                "{force}" => more.push(flag("force")),
                word => more.push(self.filled(word, 0)),
            }
        }
        Ok(with_more(&words, &more))
    }

    /// Returns the first file of the set that the pieces wrote: the folder, the only file, or the numbered
    /// file. The tensors may make fewer files than there are pieces.
    fn first_of_set(&self) -> Result<String, Error> {
        let output = Path::new(&self.output);
        let stem = output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let begin = format!("{stem}-00001-of-");
        let end = ".gguf";
        let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
        let entries = fs_err::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten();
        let mut sets: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let digits = name.strip_prefix(&begin).and_then(|suffix| suffix.strip_suffix(end));
                let count = digits.and_then(|digits| digits.parse::<usize>().ok());
                count.is_some_and(|files| files <= self.count)
            })
            .collect();
        sets.sort();
        match &sets[..] {
            [one] if !output.exists() => Ok(one.display().to_string()),
            // Before anything is written, and for a folder or a single file.
            [] => Ok(self.output.clone()),
            several => bail!(
                "there are several sets of files for `{}`: `{}` and {}; remove the others",
                self.output,
                several[0].display(),
                several.get(1).map_or_else(
                    || format!("`{}`", self.output),
                    |other| format!("`{}`", other.display())
                )
            ),
        }
    }

    /// Returns the hash that ties records to this command and this number of pieces. The order of the words and
    /// the spelling of flags do not matter.
    pub fn identity(&self) -> String {
        let mut hash = Sha256::new();
        let text = (env!("CARGO_PKG_VERSION"), self.kind.name, &self.values, self.count);
        hash.update(serde_json::json!(text).to_string());
        format!("{:x}", hash.finalize())
    }

    /// Refuses an output that the merge would write over, before anything is computed for it.
    pub fn refuse_output(&self) -> Result<(), Error> {
        let output = Path::new(&self.output);
        ensure!(
            !self.kind.merge_writes
                || self.values.contains_key("force")
                || !output.exists()
                || fs_err::read_dir(output).is_ok_and(|mut entries| entries.next().is_none()),
            "`{}` is there already, and the merge would write over it; remove it, or choose another name",
            self.output
        );
        Ok(())
    }

    /// Returns the paths that all machines have to see: those that are read, and the folders that are written.
    pub(crate) fn shared(&self) -> (Vec<String>, Vec<String>) {
        let mut reads: Vec<String> = Vec::new();
        for read in &self.reads {
            if !reads.contains(&read.path) {
                reads.push(read.path.clone());
            }
        }
        let folder = match Path::new(&self.output).parent() {
            Some(folder) if folder != Path::new("") => folder.display().to_string(),
            _ => ".".to_owned(),
        };
        (reads, vec![folder, self.state.display().to_string()])
    }

    /// Returns the paths among the inputs that are not on this machine.
    pub fn absent(&self) -> Vec<String> {
        let mut absent = self.shared().0;
        absent.retain(|path| !Path::new(path).exists());
        absent
    }

    /// Returns the words of a task, which chooses its piece by `which`.
    pub(crate) fn task(&self, program: &str, which: &[&str]) -> Vec<String> {
        self.jobs_words(program, "run", which)
    }

    /// Returns the words of the merge, with this program's name on the machines.
    pub(crate) fn merge_words(&self, program: &str) -> Vec<String> {
        self.jobs_words(program, "merge", &[])
    }

    /// Returns the merge as a line for a shell.
    pub fn merge_line(&self, program: &str) -> String {
        shell_line(&self.merge_words(program))
    }

    fn jobs_words(&self, program: &str, verb: &str, more: &[&str]) -> Vec<String> {
        let count = self.count.to_string();
        let state = self.state.display().to_string();
        let pieces_flag = flag("pieces");
        let state_flag = flag("state");
        let options = ["jobs", verb, &pieces_flag, &count, &state_flag, &state];
        let words = [program].into_iter().chain(options).chain(more.iter().copied()).chain(["--"]);
        words.map(str::to_owned).chain(self.words.iter().cloned()).collect()
    }

    fn filled(&self, template: &str, number: usize) -> String {
        let counted = template.replace("{i}", &number.to_string());
        counted.replace("{n}", &self.count.to_string()).replace("{output}", &self.output)
    }
}

/// True for the name of this program, which a command may begin with.
fn is_own_name(word: &str) -> bool {
    Path::new(word).file_stem().is_some_and(|name| name == "onboard")
}

/// Adds words before a `--`, behind which all words belong to another program.
fn with_more(words: &[String], more: &[String]) -> Vec<String> {
    let at = words.iter().position(|word| word == "--").unwrap_or(words.len());
    [&words[..at], more, &words[at..]].concat()
}

/// Replaces the value of the flag for the output.
fn with_output(words: &[String], old: &str, new: &str) -> Result<Vec<String>, Error> {
    let mut changed = words.to_vec();
    for at in 0..words.len() {
        if (words[at] == "-o" || words[at] == flag("output"))
            && words.get(at + 1).is_some_and(|word| word.trim_end_matches('/') == old)
        {
            new.clone_into(&mut changed[at + 1]);
            return Ok(changed);
        }
        for begin in [&*format!("{}=", flag("output")), "-o=", "-o"] {
            let value = words[at].strip_prefix(begin);
            if value.is_some_and(|value| value.trim_end_matches('/') == old) {
                changed[at] = format!("{begin}{new}");
                return Ok(changed);
            }
        }
    }
    bail!(
        "the output is written in a way that cannot be divided; give it as `-o {}`",
        shell_word(old)
    )
}
