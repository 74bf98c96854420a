//! Reads result files line by line, and detects their format by their content.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use formats::shown;

use super::sample::{ResultFormat, Results, Sample};
use super::tree::JsonTree;

mod bench;
pub(super) mod lm_eval;
pub(super) mod plain;

/// Error in reading a result file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The path is a folder of result files.
    #[error("`{path}` is a folder{}; name one file of samples", list(found))]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Files of samples in it.
        found: Vec<String>,
    },
    /// The file only has scores of whole tasks.
    #[error(
        "`{path}` has the scores of whole tasks and no samples{}; give the samples file, or run lm-eval again with --log_samples",
        list(found)
    )]
    Aggregate {
        /// The file.
        path: PathBuf,
        /// Files of samples beside it.
        found: Vec<String>,
    },
    /// No line of the file is JSON.
    #[error(
        "`{path}` has no record that can be read: {why}; expected JSON lines, one record a line"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First errors.
        why: String,
    },
    /// The record has an unknown form.
    #[error(
        "`{path}`, line {line}: a record with {keys} is of no form that is known; understood are samples of lm-eval \
         (`doc_id`, `resps`), predictions of sgl-eval (`generation`, `predicted_answer`), bench files of SGLang and \
         vLLM with their texts (`generated_texts`), and plain samples (`id` with `logprobs`, `text`, `answer` or \
         `correct`: `onboard help evals`)"
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The keys of the record.
        keys: String,
    },
    /// The bench file has no texts.
    #[error("`{path}` has throughput and no texts; run the bench again with {flag}")]
    Throughput {
        /// The file.
        path: PathBuf,
        /// The flag that writes texts.
        flag: &'static str,
    },
    /// The file does not have the filter.
    #[error("`{path}` has no filter `{filter}`; there are: {known}")]
    Filter {
        /// The file.
        path: PathBuf,
        /// Requested filter.
        filter: String,
        /// Filters of the file.
        known: String,
    },
}

fn list(files: &[String]) -> String {
    match files {
        [] => String::new(),
        files => format!(" (there are {})", registry::listing::items(files)),
    }
}

/// Options for reading a file.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Filter of lm-eval whose answers are taken; the first of the file if not given.
    pub filter: Option<String>,
}

/// Maximum bytes of a line; with the line break, a power of two, which limits the growth of a vector.
const LINE: u64 = (32 << 20) - 1;
/// Maximum number of errors that are listed one by one.
const TOLD: usize = 3;
/// Keys whose values are large and unused.
pub(super) const SKIP: &[&str] =
    &["doc", "itls", "ttfts", "latencies", "start_times", "queue_times"];

/// Reads a result file.
pub fn read(path: &Path, options: &ReadOptions) -> Result<Results, Error> {
    if path.is_dir() {
        return Err(Error::Folder { path: path.to_owned(), found: sample_files(path) });
    }
    let mut reader = ResultReader::new(path, options);
    lines(path, |number, line| -> Result<bool, Error> {
        match line {
            Ok(line) => reader.line(number, line)?,
            Err(why) => reader.damaged(number, &why),
        }
        Ok(!reader.too_damaged())
    })?;
    reader.finish()
}

/// Calls `each` with every nonblank line, trimmed, until it returns false.
pub(super) fn lines<E: From<std::io::Error>>(
    path: &Path,
    mut each: impl FnMut(usize, Result<&[u8], String>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut lines = BufReader::with_capacity(1 << 16, registry::file::open(path)?);
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        lines.by_ref().take(LINE + 1).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            break;
        }
        if bytes.len() as u64 > LINE {
            each(number, Err(format!("the line has more than {} MiB", (LINE + 1) >> 20)))?;
            break;
        }
        // Byte order mark, as some editors write it.
        let line = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).trim_ascii();
        if !line.is_empty() && !each(number, Ok(line))? {
            break;
        }
    }
    Ok(())
}

/// Returns the names of sample files in a folder.
fn sample_files(folder: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut files: Vec<_> =
        names.filter(|name| name.starts_with("samples_") && name.contains(".jsonl")).collect();
    files.sort();
    files.truncate(8);
    files.iter().map(|name| format!("`{name}`")).collect()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Content of one record.
pub(super) enum ResultRecord {
    /// Sample, with the name of a filter if the format has filters.
    Sample(Box<Sample>, Option<String>),
    /// All samples of a run, and facts about it.
    Run(Vec<Sample>, BTreeMap<String, String>),
    /// Facts only.
    Head(BTreeMap<String, String>),
}

struct ResultReader<'a> {
    options: &'a ReadOptions,
    filters: BTreeSet<String>,
    taken: Option<String>,
    seen: BTreeMap<String, usize>,
    repeated: Vec<String>,
    damaged: Vec<String>,
    bad: usize,
    results: Results,
    known: Option<ResultFormat>,
}

impl<'a> ResultReader<'a> {
    fn new(path: &Path, options: &'a ReadOptions) -> Self {
        let results = Results {
            path: path.to_owned(),
            format: ResultFormat::Plain,
            samples: Vec::new(),
            facts: BTreeMap::new(),
            notes: Vec::new(),
        };
        Self {
            options,
            filters: BTreeSet::new(),
            taken: options.filter.clone(),
            seen: BTreeMap::new(),
            repeated: Vec::new(),
            damaged: Vec::new(),
            bad: 0,
            results,
            known: None,
        }
    }

    fn damaged(&mut self, line: usize, why: &str) {
        self.bad += 1;
        if self.damaged.len() < TOLD {
            self.damaged.push(format!("line {line}: {why}"));
        }
    }

    /// True if too many lines were invalid and none valid, so that reading stops.
    fn too_damaged(&self) -> bool {
        self.known.is_none() && self.bad >= 100
    }

    fn line(&mut self, number: usize, line: &[u8]) -> Result<(), Error> {
        let tree = match JsonTree::parse(line, SKIP) {
            Ok(tree @ JsonTree::Map(_)) => tree,
            Ok(_) => {
                self.damaged(number, "the line is JSON, but no object");
                return Ok(());
            }
            Err(why) => {
                // The result of a whole run is pretty-printed over many lines.
                if number == 1 && line == b"{" {
                    return self.pretty();
                }
                self.damaged(number, &why);
                return Ok(());
            }
        };
        self.record(number, &tree)
    }

    /// Distinguishes a pretty-printed file of scores from a damaged one.
    fn pretty(&self) -> Result<(), Error> {
        let path = &self.results.path;
        let file_bytes = registry::file::read(path, registry::file::MANIFEST)?;
        let tree = JsonTree::parse(&file_bytes, &["samples", "configs"]);
        let tree = tree.map_err(|why| Error::Damaged { path: path.clone(), why })?;
        Err(self.refused(1, &tree))
    }

    fn refused(&self, line: usize, tree: &JsonTree) -> Error {
        let path = self.results.path.clone();
        if tree.has("results") && (tree.has("n-samples") || tree.has("versions")) {
            let files = sample_files(folder(&path));
            return Error::Aggregate { path, found: files };
        }
        if let Some(flag) = bench::throughput(tree) {
            return Error::Throughput { path, flag };
        }
        let mut keys: Vec<_> = tree.keys().take(8).map(|key| format!("`{}`", shown(key))).collect();
        if keys.is_empty() {
            keys.push("no key".to_owned());
        }
        Error::Unknown { path, line, keys: keys.join(", ") }
    }

    fn record(&mut self, number: usize, tree: &JsonTree) -> Result<(), Error> {
        let format = match recognise(tree) {
            Some(format) => format,
            None if self.known.is_some() => {
                self.damaged(number, "a record without the keys of the others");
                return Ok(());
            }
            None => return Err(self.refused(number, tree)),
        };
        if self.known.is_some_and(|known| known != format) {
            self.damaged(number, &format!("a record of another form ({format})"));
            return Ok(());
        }
        let record = match format {
            ResultFormat::LmEval => lm_eval::record(tree),
            ResultFormat::SglangBench | ResultFormat::VllmBench => bench::record(tree),
            ResultFormat::SglEval | ResultFormat::Plain => plain::record(tree),
        };
        self.known = Some(format);
        self.results.format = format;
        match record {
            Ok(ResultRecord::Head(facts)) => self.results.facts.extend(facts),
            Ok(ResultRecord::Run(samples, facts)) => {
                if !self.results.samples.is_empty() {
                    self.note("the file has several runs; the first is taken");
                    return Ok(());
                }
                self.results.facts.extend(facts);
                self.results.samples = samples;
            }
            Ok(ResultRecord::Sample(sample, filter)) => self.sample(number, *sample, filter),
            Err(why) => self.damaged(number, &why),
        }
        if format == ResultFormat::LmEval {
            lm_eval::facts(tree, &mut self.results.facts);
        } else if format == ResultFormat::Plain {
            plain::facts(tree, &mut self.results.facts);
        }
        Ok(())
    }

    fn sample(&mut self, number: usize, mut sample: Sample, filter: Option<String>) {
        if let Some(filter) = filter {
            if self.filters.len() < 64 {
                self.filters.insert(filter.clone());
            }
            if *self.taken.get_or_insert_with(|| filter.clone()) != filter {
                return;
            }
        }
        sample.line = number;
        if self.seen.insert(sample.id.clone(), number).is_some() {
            self.repeated.push(sample.id);
            return;
        }
        self.results.samples.push(sample);
    }

    fn note(&mut self, note: &str) {
        if !self.results.notes.iter().any(|known| known == note) {
            self.results.notes.push(note.to_owned());
        }
    }

    /// Lists the filters of the file.
    fn known_filters(&self) -> String {
        registry::listing::items(self.filters.iter().map(|filter| shown(filter)))
    }

    fn finish(mut self) -> Result<Results, Error> {
        let path = self.results.path.clone();
        if let Some(filter) = &self.options.filter
            && !self.filters.is_empty()
            && !self.filters.contains(filter)
        {
            let filter = shown(filter);
            return Err(Error::Filter { path, filter, known: self.known_filters() });
        }
        if self.results.samples.is_empty() {
            let why = match self.damaged.as_slice() {
                [] => "it has no samples".to_owned(),
                damaged => damaged.join("; "),
            };
            return Err(Error::Damaged { path, why });
        }
        if let Some(taken) = &self.taken
            && !self.filters.is_empty()
        {
            self.results.facts.insert("filter".to_owned(), taken.clone());
        }
        if self.filters.len() > 1 {
            let taken = shown(self.taken.as_deref().unwrap_or_default());
            let known = self.known_filters();
            self.note(&format!("filter `{taken}` of {known}; the option `filter` takes another"));
        }
        if self.bad > 0 {
            let note =
                format!("{} unreadable lines left out ({})", self.bad, self.damaged.join("; "));
            self.note(&note);
        }
        if let Some(first) = self.repeated.first() {
            let n = self.repeated.len();
            let first = shown(first);
            self.note(&format!("{n} samples with an id that came before (`{first}`) left out"));
        }
        if self.results.format == ResultFormat::LmEval {
            lm_eval::add_results_facts(&path, &mut self.results.facts);
        }
        Ok(self.results)
    }
}

/// Detects the format of a record by its keys.
fn recognise(tree: &JsonTree) -> Option<ResultFormat> {
    if tree.has("doc_id") && (tree.has("resps") || tree.has("filtered_resps")) {
        return Some(ResultFormat::LmEval);
    }
    if tree.has("generation") && tree.has("predicted_answer") {
        return Some(ResultFormat::SglEval);
    }
    if tree.has("generated_texts") {
        let vllm = tree.has("endpoint_type") || tree.has("tokenizer_id") || tree.has("model_id");
        return Some(if vllm { ResultFormat::VllmBench } else { ResultFormat::SglangBench });
    }
    plain::is(tree).then_some(ResultFormat::Plain)
}

#[cfg(test)]
mod tests;
