//! The table of ops of `docs/spec.md`, written from their declarations.

use std::fmt::Write as _;

use super::{Declaration, OpSet};

/// Returns one row per op, in Markdown, related ops together.
pub fn table(ops: &OpSet) -> String {
    let mut text = "| op | gives | notes |\n|---|---|---|\n".to_owned();
    for op in ops.declared() {
        let gives = op.output_doc();
        let notes = op.notes_doc();
        let _ = writeln!(text, "| `{}` | {gives} | {notes} |", call(op));
    }
    text
}

/// Formats an op with all of its parameters, as a call is written.
pub fn call(op: &Declaration) -> String {
    format!("{}{}", op.name(), op.signature())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_is_documented() {
        for op in OpSet::builtin().declared() {
            assert!(!op.output_doc().is_empty(), "`{}` does not say what it gives", op.name());
            assert!(!op.notes_doc().is_empty(), "`{}` has no notes", op.name());
        }
    }

    #[test]
    fn the_written_table_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/spec.md");
        let page = fs_err::read_to_string(path).unwrap();
        let start = page.find("| op | gives | notes |").expect("docs/spec.md has a table of ops");
        let length = page[start..].find("\n\n").map_or(page.len() - start, |end| end + 1);
        let fresh =
            format!("{}{}{}", &page[..start], table(&OpSet::builtin()), &page[start + length..]);
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(path, &fresh).unwrap();
        }
        let written = fs_err::read_to_string(path).unwrap();
        assert!(
            written == fresh,
            "docs/spec.md is stale: run `UPDATE=1 cargo test -p onboard-spec table`"
        );
    }
}
