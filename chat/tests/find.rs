//! The format of each of 126 real chat templates, which people decided by reading them.
//!
//! `chat/tests/formats/templates.py` writes the marks of the templates. `ONBOARD_TEMPLATES` names a folder with the
//! templates themselves, which are then read too.

use std::env;
use std::path::{Path, PathBuf};

use onboard_chat::Format;
use serde::Deserialize;

/// Line of the table.
#[derive(Deserialize)]
struct FoundFormat {
    name: String,
    sha256: String,
    format: Option<String>,
    /// Calls that no format covers.
    note: Option<String>,
    marks: Vec<String>,
}

fn table() -> Vec<FoundFormat> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/templates.jsonl");
    let text = fs_err::read_to_string(path).expect("the table");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn formats_of_real_templates_are_found() {
    let table = table();
    assert!(table.len() >= 126, "{} templates", table.len());
    let folder = env::var_os("ONBOARD_TEMPLATES").map(PathBuf::from);
    let mut wrong = Vec::new();
    for line in &table {
        assert_eq!(line.sha256.len(), 64, "{}", line.name);
        let mut texts = vec![line.marks.join("\n")];
        if let Some(folder) = &folder {
            texts.extend(fs_err::read_to_string(folder.join(format!("{}.jinja", line.name))));
        }
        for text in texts {
            let name = Format::find(&text).map(Format::name);
            if name != line.format.as_deref() {
                wrong.push(format!("{}: {name:?} instead of {:?}", line.name, line.format));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each format of calls is that of a real template, and a template without a format has no calls or says why.
#[test]
fn the_table_covers_the_formats() {
    let table = table();
    let without: Vec<&str> = Format::names()
        .filter(|name| !table.iter().any(|line| line.format.as_deref() == Some(name)))
        .collect();
    // `json` is the format of forced calls that a model's own cannot express.
    assert_eq!(without, ["deepseek_v41", "json"], "formats of no template in the table");
    let calls = ["tool_calls", "tool_call>", "<tool_call", "<TOOLCALL>"];
    for line in table.iter().filter(|line| line.format.is_none()) {
        let has = line.marks.iter().any(|mark| calls.iter().any(|call| mark.contains(call)));
        assert!(!has || line.note.is_some(), "{} needs a note", line.name);
    }
}
