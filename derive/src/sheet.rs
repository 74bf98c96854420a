//! The text of a spec.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::names::Names;
use crate::origin::{Origin, note};
use crate::read::Reader;
use crate::record::Record;

mod keys;
mod kinds;
mod ropes;
mod weights;

/// A program of one layer with its functions.
pub(crate) struct Layer {
    pub(crate) program: String,
    pub(crate) functions: BTreeMap<String, String>,
    /// Path of the layer's module.
    pub(crate) path: String,
    /// Path of the module of each function.
    pub(crate) modules: BTreeMap<String, String>,
}

/// The parts of a spec before they are text.
pub(crate) struct Sheet<'s> {
    pub(crate) origins: &'s RefCell<Vec<Origin>>,
    pub(crate) record: &'s Record,
    pub(crate) reader: &'s Reader<'s>,
    pub(crate) names: &'s Names<'s>,
    pub(crate) tables: &'s [(String, String)],
    pub(crate) list: &'s str,
    pub(crate) carry: Vec<String>,
    pub(crate) written: Vec<Layer>,
    pub(crate) model: String,
    pub(crate) transposed: Vec<String>,
    pub(crate) squeezed: Vec<String>,
    pub(crate) inner: Vec<String>,
    pub(crate) alone: Vec<String>,
    /// Matrices whose rows are those of several, and their number.
    pub(crate) grouped: Vec<(String, String)>,
    /// Functions that programs of several layers call.
    pub(crate) shared: BTreeMap<String, String>,
    pub(crate) states: Vec<(String, String)>,
}

impl Sheet<'_> {
    /// Notes the layers of each kind.
    fn note_kinds(&self, kinds: &[(String, String)], programs: &[(String, Vec<usize>)]) {
        for (label, program) in kinds {
            let name = format!("layers.{}", label.trim_matches('"'));
            let same = programs.iter().filter(|(known, _)| known == program);
            for &index in same.flat_map(|(_, layers)| layers) {
                note(self.origins, self.record, &name, &self.written[index].path);
            }
        }
    }

    pub(crate) fn text(&self, name: &str) -> String {
        let mut functions = self.shared.clone();
        let mut programs: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, layer) in self.written.iter().enumerate() {
            let mut program = layer.program.clone();
            for (header, body) in &layer.functions {
                let (function, parameters) = header.split_once('(').unwrap_or((header, ""));
                let mut chosen = function.to_owned();
                let mut number = 2;
                let differs = |chosen: &str, functions: &BTreeMap<String, String>| {
                    functions.iter().any(|(known, text)| {
                        known.split('(').next() == Some(chosen)
                            && (*known != format!("{chosen}({parameters}") || text != body)
                    })
                };
                while differs(&chosen, &functions) {
                    chosen = format!("{function}_{number}");
                    number += 1;
                }
                if chosen != function {
                    program = program.replace(&format!("{function}("), &format!("{chosen}("));
                }
                if let Some(module) = layer.modules.get(header) {
                    note(self.origins, self.record, &chosen, module);
                }
                functions.insert(format!("{chosen}({parameters}"), body.clone());
            }
            match programs.iter_mut().find(|(known, _)| *known == program) {
                Some((_, layers)) => layers.push(index),
                None => programs.push((program, vec![index])),
            }
        }
        let kinds = self.kinds(&programs);
        self.note_kinds(&kinds.programs, &programs);
        let ropes = self.ropes();
        let states = self.states();
        let mut text = format!("spec: 1\nname: {name}\nmatches: [{}]\n", self.record.class);
        let mut body = String::new();
        if !functions.is_empty() {
            body.push_str("\nfunctions:\n");
            for (header, program) in &functions {
                let _ = write!(body, "  {header}: |\n{}\n", indented(program, 4));
            }
        }
        let _ = write!(
            body,
            "\nlayers:\n  prefix: {}.{{i}}\n",
            crate::write::text_model(&format!("{}.", self.list)).trim_end_matches('.')
        );
        if !self.carry.is_empty() {
            let _ = writeln!(body, "  carry: [{}]", self.carry.join(", "));
        }
        if let Some(kind) = &kinds.expression {
            let _ = writeln!(body, "  kind: {kind}");
        }
        for (label, program) in &kinds.programs {
            let _ = write!(body, "  {label}: |\n{}\n", indented(program, 4));
        }
        let _ = write!(body, "\nmodel: |\n{}\n", indented(&self.model, 2));
        body.push_str(&self.weight_rules());
        body.push_str(&self.kept());
        let mut dims = self.names.dims();
        dims.sort_by_key(|(dim, _)| match dim.as_str() {
            "hidden" => 0,
            "layers" => 1,
            "vocab" => 2,
            _ => 3,
        });
        text.push_str("\ndims:\n");
        for (dim, source) in dims {
            let _ = writeln!(text, "  {dim}: {source}");
        }
        text.push_str(&ropes);
        text.push_str(&states);
        let (mut assumptions, ignored) = self.other_keys(&format!("{text}{body}"));
        if body.contains("attend_to(") || kinds.is_guess {
            assumptions.push((
                format!("there are {} layers", self.written.len()),
                format!("layers == {}", self.written.len()),
            ));
        }
        if programs.len() > 2 && programs.len() == self.written.len() {
            // Where no two layers are alike, no test says which of the lists tells them apart.
            assumptions.extend(self.same_lists());
        }
        if kinds.expression.as_ref().is_some_and(|kind| kind.contains(" if ")) {
            let inner = self.record.text_config();
            for (key, value) in inner.as_object().into_iter().flatten() {
                let words = keys::words_of(value);
                let name = self.names.name_if_used(key);
                if let (Some(name), false) = (name, words.is_empty()) {
                    assumptions.push((
                        format!("the kinds of {key} are known"),
                        format!("all([k in [{}] for k in {name}])", keys::quoted(&words)),
                    ));
                }
            }
        }
        if !assumptions.is_empty() {
            let lines: Vec<String> =
                assumptions.iter().map(|(words, test)| format!("  {words}: \"{test}\"")).collect();
            let at = text.find("\ndims:").unwrap_or(text.len());
            text.insert_str(at, &format!("assumes:\n{}\n", lines.join("\n")));
        }
        let unread = self.unread_tensors();
        if !ignored.is_empty() || !unread.is_empty() {
            body.push_str("\nignore:\n");
            if !unread.is_empty() {
                let _ = writeln!(body, "  weights: [{}]", unread.join(", "));
            }
            if !ignored.is_empty() {
                let _ = writeln!(body, "  config: [{}]", ignored.join(", "));
            }
        }
        text + &body
    }

    fn states(&self) -> String {
        let lines: Vec<String> = self
            .states
            .iter()
            .map(|(name, declaration)| format!("  {name}: {{ {declaration} }}\n"))
            .collect();
        if lines.is_empty() { String::new() } else { format!("\nstates:\n{}", lines.concat()) }
    }
}

/// A path with a hole for each number.
fn general(path: &str) -> String {
    path.split('.')
        .map(|part| if part.chars().all(|letter| letter.is_ascii_digit()) { "{i}" } else { part })
        .collect::<Vec<_>>()
        .join(".")
}

fn indented(program: &str, by: usize) -> String {
    program.lines().map(|line| format!("{}{line}", " ".repeat(by))).collect::<Vec<_>>().join("\n")
}
