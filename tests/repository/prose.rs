//! The text of the project: opening words, sentence length, and words of the field.
//!
//! Pages are held to the rules strictly. Doc comments of Rust files are held to ceilings.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::tool::root;

/// Words that open a clause where a noun or a verb belongs.
const OPENERS: [&str; 4] = ["What", "Whether", "How", "Where"];
/// Most words of the first sentence of a section or doc comment.
const LONGEST: usize = 20;
/// Share of sentences in pages that may begin with an opener.
const PAGES: f64 = 0.03;
/// Share of doc comments that may begin with an opener.
const COMMENTS: f64 = 0.01;
/// Share of doc comments whose first sentence may be too long.
const LONG_COMMENTS: f64 = 0.02;
/// Phrases with a common word of the field in their place.
const BANNED: [(&str, &str); 12] = [
    ("whole number", "integer"),
    ("model that sees", "vision-language model"),
    ("models that see", "vision-language models"),
    ("model of text", "text model"),
    ("models of text", "text models"),
    ("stands for", "encodes, means"),
    ("stand for", "encode, mean"),
    ("told again", "survives a round trip"),
    ("tell again", "survive a round trip"),
    ("in my book", "unexplained"),
    ("are felt", "show"),
    ("has luck", "happens to"),
];

/// Folders of sources with the endings of files that hold text of the project.
const SOURCES_OF_TEXT: [(&str, &str); 22] = [
    ("cli", "rs"),
    ("registry", "rs"),
    ("registry", "yaml"),
    ("converters", "rs"),
    ("engine", "rs"),
    ("chat", "rs"),
    ("serve", "rs"),
    ("endpoints", "rs"),
    ("parity", "rs"),
    ("parity/reference", "py"),
    ("models", "rs"),
    ("hub", "rs"),
    ("images", "rs"),
    ("images", "yaml"),
    ("jobs", "rs"),
    ("lanes", "rs"),
    ("proofs", "rs"),
    ("tests", "rs"),
    ("tests/suite", "test"),
    ("fixtures", "py"),
    ("engines", "py"),
    ("benches", "py"),
];

/// A sentence with its place.
struct Sentence {
    path: PathBuf,
    line: usize,
    text: String,
    /// True for the first sentence of a section's first paragraph, or of a doc comment.
    first: bool,
}

impl Sentence {
    fn is_clause(&self) -> bool {
        let word = self.text.trim_start_matches(|c: char| !c.is_alphanumeric());
        OPENERS.iter().any(|opener| {
            word.strip_prefix(opener).is_some_and(|tail| !tail.starts_with(char::is_alphanumeric))
        })
    }

    fn is_long(&self) -> bool {
        self.first && words(&self.text) > LONGEST
    }

    fn place(&self) -> String {
        let path = self.path.strip_prefix(root()).unwrap_or(&self.path);
        let text: String = self.text.chars().take(90).collect();
        format!("{}:{}: {text}", path.display(), self.line)
    }
}

/// Counts words; code in backticks and the target of a link are one word or none.
fn words(sentence: &str) -> usize {
    let parts = sentence.split('`').enumerate();
    let plain: String = parts.map(|(n, part)| if n % 2 == 0 { part } else { "X" }).collect();
    let mut without_targets = String::new();
    for (n, part) in plain.split("](").enumerate() {
        let after = part.split_once(')').map_or(part, |(_, after)| after);
        without_targets.push_str(if n == 0 { part } else { after });
    }
    without_targets.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// Splits text at the ends of sentences.
fn sentences(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut quoted = false;
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        quoted ^= letter == '`';
        let ends = !quoted && matches!(letter, '.' | '?' | '!' | ':');
        if ends && letters.peek().is_some_and(|(_, next)| *next == ' ') {
            parts.push(text[begin..=at].trim());
            begin = at + 1;
        }
    }
    parts.push(text[begin..].trim());
    parts.retain(|sentence| words(sentence) > 0);
    parts
}

/// Lists the files below a folder that have an ending.
fn files(folder: &Path, ending: &str, paths: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs_err::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, ending, paths);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            paths.push(path);
        }
    }
}

/// Lists the pages that people write.
fn pages() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "BENCHMARKS.md"]
            .map(|name| root().join(name))
            .into();
    files(&root().join("docs"), "md", &mut paths);
    let generated = ["docs/reference/cli.md", "docs/reference/keys.md"];
    paths.retain(|path| !generated.iter().any(|page| path.ends_with(page)));
    paths
}

/// Reads the sentences of a page: paragraphs, items, headings and cells, without code.
fn page(path: &Path) -> Vec<Sentence> {
    let mut all = Vec::new();
    let mut code = false;
    let mut written = false;
    let mut section = false;
    let mut paragraph = (0, String::new());
    let text = fs_err::read_to_string(path).unwrap();
    let mut add = |line: usize, text: &str, first: bool| {
        for (n, sentence) in sentences(text).into_iter().enumerate() {
            let first = first && n == 0;
            all.push(Sentence { path: path.into(), line, text: sentence.into(), first });
        }
    };
    for (n, line) in text.lines().chain([""]).enumerate() {
        let fence = line.trim_start().starts_with("```");
        let row = line.starts_with('|');
        let heading = line.starts_with('#') && !code;
        let numbered = line.trim_start().split_once(". ").is_some_and(|(number, _)| {
            !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
        });
        let item = numbered || line.trim_start().starts_with("* ") || line.starts_with("- ");
        let comment = line.starts_with("<!--");
        let ends = line.is_empty() || fence || row || heading || item || comment;
        if ends && !paragraph.1.is_empty() {
            add(paragraph.0, &std::mem::take(&mut paragraph.1), std::mem::take(&mut section));
        }
        code ^= fence;
        if comment {
            written = line.contains("written by");
        }
        if code || fence || written || comment || line.starts_with("    ") && !item {
            continue;
        }
        if heading {
            section = true;
            add(n + 1, line.trim_start_matches(['#', ' ']), false);
        } else if row {
            section = false;
            line.trim_matches('|').split('|').for_each(|cell| add(n + 1, cell.trim(), false));
        } else if !line.is_empty() {
            section &= !item;
            let text = if item { line.trim_start().split_once(' ').unwrap().1 } else { line };
            if paragraph.1.is_empty() {
                paragraph.0 = n + 1;
            }
            let _ = write!(paragraph.1, "{} ", text.trim());
        }
    }
    all
}

/// Returns the text of a line of a doc comment.
fn doc_line(line: &str) -> Option<String> {
    let line = line.trim_start();
    let body = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!body.starts_with('/')).then(|| body.trim().to_owned())
}

/// Reads the first sentence of every doc comment of a Rust file.
fn comments(path: &Path) -> Vec<Sentence> {
    let text = fs_err::read_to_string(path).unwrap();
    let mut all = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((n, line)) = lines.next() {
        let Some(mut block) = doc_line(line) else { continue };
        while let Some(more) = lines.peek().and_then(|(_, line)| doc_line(line)) {
            lines.next();
            if more.is_empty() {
                break;
            }
            let _ = write!(block, " {more}");
        }
        // The rest of the comment, behind an empty line.
        while lines.peek().is_some_and(|(_, line)| doc_line(line).is_some()) {
            lines.next();
        }
        if let Some(sentence) = sentences(&block).first() {
            all.push(Sentence {
                path: path.into(),
                line: n + 1,
                text: (*sentence).into(),
                first: true,
            });
        }
    }
    all
}

/// Lists sentences with their places, at most so many.
fn shown<'a>(sentences: impl IntoIterator<Item = &'a Sentence>) -> String {
    let places: Vec<String> = sentences.into_iter().take(40).map(Sentence::place).collect();
    places.join("\n")
}

fn share(part: usize, total: usize) -> f64 {
    part as f64 / total.max(1) as f64
}

#[test]
fn pages_begin_sentences_with_nouns_and_verbs() {
    let all: Vec<Sentence> = pages().iter().flat_map(|path| page(path)).collect();
    assert!(all.len() > 2000, "only {} sentences were read", all.len());
    let clauses: Vec<&Sentence> = all.iter().filter(|sentence| sentence.is_clause()).collect();
    let share = share(clauses.len(), all.len());
    assert!(share < PAGES, "{:.1} % of sentences\n{}", 100.0 * share, shown(clauses));
}

#[test]
fn sections_begin_with_a_short_sentence() {
    let all: Vec<Sentence> = pages().iter().flat_map(|path| page(path)).collect();
    let long: Vec<&Sentence> = all.iter().filter(|sentence| sentence.is_long()).collect();
    assert!(long.is_empty(), "more than {LONGEST} words:\n{}", shown(long));
}

#[test]
fn pages_use_the_words_of_the_field() {
    let mut places = String::new();
    for sentence in pages().iter().flat_map(|path| page(path)) {
        let text = sentence.text.to_lowercase();
        let plain: String = text.split('`').step_by(2).collect();
        for (phrase, instead) in BANNED.iter().filter(|(phrase, _)| plain.contains(phrase)) {
            let _ = writeln!(places, "{}\n    `{phrase}`: write {instead}", sentence.place());
        }
    }
    assert!(places.is_empty(), "{places}");
}

/// Phrases are looked for in code, too: comments, messages, specs and the texts of cases.
#[test]
fn sources_use_the_words_of_the_field() {
    let mut paths = Vec::new();
    for (room, ending) in SOURCES_OF_TEXT {
        files(&root().join(room), ending, &mut paths);
    }
    assert!(paths.len() > 700, "only {} files were read", paths.len());
    let mut places = String::new();
    for path in paths.iter().filter(|path| !path.ends_with(file!())) {
        let text = fs_err::read_to_string(path).unwrap().to_lowercase();
        for (n, line) in text.lines().enumerate() {
            for (phrase, instead) in BANNED.iter().filter(|(phrase, _)| line.contains(phrase)) {
                let path = path.strip_prefix(root()).unwrap().display();
                let _ = writeln!(places, "{path}:{}: `{phrase}`: write {instead}", n + 1);
            }
        }
    }
    assert!(places.is_empty(), "{places}");
}

#[test]
fn doc_comments_stay_below_their_ceilings() {
    let mut paths = Vec::new();
    for room in [
        "cli",
        "registry",
        "converters",
        "engine",
        "chat",
        "endpoints",
        "parity",
        "models",
        "hub",
        "images",
        "jobs",
        "lanes",
        "proofs",
        "tests",
    ] {
        files(&root().join(room), "rs", &mut paths);
    }
    let all: Vec<(usize, Vec<Sentence>)> = paths
        .iter()
        .map(|path| comments(path))
        .map(|comments| {
            (comments.iter().filter(|s| s.is_clause() || s.is_long()).count(), comments)
        })
        .collect();
    let each: Vec<&Sentence> = all.iter().flat_map(|(_, comments)| comments).collect();
    let count = each.len();
    let clauses = share(each.iter().filter(|sentence| sentence.is_clause()).count(), count);
    let long = share(each.iter().filter(|sentence| sentence.is_long()).count(), count);
    let mut worst: Vec<&(usize, Vec<Sentence>)> = all.iter().collect();
    worst.sort_by_key(|(bad, _)| std::cmp::Reverse(*bad));
    let worst = worst.iter().take(5).flat_map(|(_, comments)| comments);
    let worst = shown(worst.filter(|sentence| sentence.is_clause() || sentence.is_long()));
    let told = format!(
        "{count} doc comments: {:.1} % begin with {OPENERS:?}, {:.1} % with a sentence of more than {LONGEST} words\n\
         worst files:\n{worst}",
        100.0 * clauses,
        100.0 * long
    );
    println!("{told}");
    assert!(clauses < COMMENTS && long < LONG_COMMENTS, "{told}");
}

#[test]
fn sentences_are_cut_and_counted_as_people_do() {
    assert_eq!(sentences("Reads `a. b` now. Then writes."), ["Reads `a. b` now.", "Then writes."]);
    assert_eq!(words("Reads `a b c` of [the page](docs/page.md) - again"), 6);
    for (text, is_clause) in [
        ("What an engine can run.", true),
        ("**Whether** it runs", true),
        ("Whatever an engine runs.", false),
        ("Returns what an engine runs.", false),
    ] {
        let path = PathBuf::new();
        let sentence = Sentence { path, line: 1, text: text.into(), first: true };
        assert_eq!(sentence.is_clause(), is_clause, "{text}");
    }
}
