//! Compares renderings with those of transformers, for each template of a folder.
//!
//! `chat/tests/templates` holds templates of our own and their golden results. `ONBOARD_TEMPLATES` and
//! `ONBOARD_TEMPLATES_GOLDEN` name another folder of templates, and the folder that
//! `parity/reference/chat.py --templates` wrote for it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use onboard_chat::{ChatRequest, OrderedJson, Template, TemplateError};

fn json(path: &Path) -> OrderedJson {
    OrderedJson::parse(&fs_err::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &OrderedJson) -> &[OrderedJson] {
    match value {
        OrderedJson::List(list) => list,
        other => panic!("expected a list, found {other:?}"),
    }
}

/// Conversations and special tokens of a golden folder.
struct Golden {
    requests: Vec<(String, ChatRequest)>,
    tokens: Vec<(String, String)>,
}

impl Golden {
    fn read(folder: &Path) -> Self {
        let file = json(&folder.join("conversations.json"));
        let now = file.get("now").and_then(OrderedJson::as_str).unwrap().parse().unwrap();
        let requests = list(file.get("conversations").unwrap()).iter().map(|one| {
            let mut request = ChatRequest::from_json(one).unwrap();
            request.now = Some(now);
            (one.get("name").unwrap().as_str().unwrap().to_owned(), request)
        });
        let OrderedJson::Map(tokens) = file.get("tokens").unwrap() else { panic!("tokens") };
        let tokens = tokens.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned()));
        Self { requests: requests.collect(), tokens: tokens.collect() }
    }

    /// Compares the renderings of one template, and returns the counts of texts and of refusals.
    fn compare(&self, templates: &Path, golden: &Path) -> Result<(usize, usize), Failed> {
        let golden = json(golden);
        let file = golden.get("template").unwrap().as_str().unwrap();
        let text = fs_err::read_to_string(templates.join(file)).unwrap();
        let template = Template::from_source(file, &text, self.tokens.clone());
        let mut texts = 0;
        let mut refusals = 0;
        let mut faults = Vec::new();
        let renderings = list(golden.get("renderings").unwrap());
        assert_eq!(renderings.len(), self.requests.len());
        for (expected, (name, request)) in renderings.iter().zip(&self.requests) {
            let ours = template.render(request);
            match (expected.get("text").and_then(OrderedJson::as_str), &ours) {
                (Some(expected), Ok(ours)) if expected == ours => texts += 1,
                (Some(expected), Ok(ours)) => {
                    let at = expected.bytes().zip(ours.bytes()).take_while(|(a, b)| a == b).count();
                    let at = (0..=at)
                        .rev()
                        .find(|at| expected.is_char_boundary(*at) && ours.is_char_boundary(*at))
                        .unwrap_or(0);
                    faults.push(format!(
                        "{name}: after {at} bytes expected {:?}, found {:?}",
                        excerpt(&expected[at..]),
                        excerpt(&ours[at..])
                    ));
                }
                (Some(_), Err(error)) => faults.push(format!("{name}: {error}")),
                (None, Ok(ours)) => {
                    let error = expected.get("error").unwrap().as_str().unwrap();
                    let cut = excerpt(ours);
                    faults.push(format!("{name}: expected the error {error:?}, found {cut:?}"));
                }
                (None, Err(error)) => {
                    let raised = matches!(expected.get("raised"), Some(OrderedJson::Bool(true)));
                    let message = expected.get("error").unwrap().as_str().unwrap();
                    match error {
                        TemplateError::Raised { message: ours, .. }
                            if raised && ours == &formats_shown(message) => {}
                        other if raised => {
                            faults.push(format!(
                                "{name}: expected the refusal {message:?}, found: {other}"
                            ));
                        }
                        _ => {}
                    }
                    refusals += 1;
                }
            }
        }
        if faults.is_empty() { Ok((texts, refusals)) } else { Err(faults.join("\n").into()) }
    }
}

/// Control characters are escaped in messages.
fn formats_shown(text: &str) -> String {
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// Begin of a text, for messages.
fn excerpt(text: &str) -> String {
    text.chars().take(120).collect()
}

fn main() {
    let test_templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
    let templates = path_variable("ONBOARD_TEMPLATES").unwrap_or_else(|| test_templates.clone());
    let golden =
        path_variable("ONBOARD_TEMPLATES_GOLDEN").unwrap_or_else(|| test_templates.join("golden"));
    let all: &'static Golden = Box::leak(Box::new(Golden::read(&golden)));
    let mut files: Vec<PathBuf> = fs_err::read_dir(&golden)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("conversations.json"))
        .collect();
    files.sort();
    let trials = files.into_iter().map(|file| {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let templates = templates.clone();
        Trial::test(name, move || all.compare(&templates, &file).map(|_| ()))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn path_variable(key: &str) -> Option<PathBuf> {
    std::env::var_os(key).map(PathBuf::from)
}
