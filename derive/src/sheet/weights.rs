//! Rules for weights that the checkpoint holds otherwise than the class.

use std::fmt::Write as _;

use super::{Sheet, general};
use crate::origin::starred;
use crate::record::Source;
use crate::write::text_model;

impl Sheet<'_> {
    /// Rules for weights that the checkpoint has under other names, in parts or transposed.
    pub(super) fn weight_rules(&self) -> String {
        let mut rules: Vec<String> = self
            .transposed
            .iter()
            .map(|path| {
                format!("  - {{ disk: \"{0}\", weight: \"{0}\", do: [transpose] }}", general(path))
            })
            .collect();
        rules.extend(self.inner.iter().map(|module| {
            format!("  - {{ disk: \"{module}.weight\", weight: \"{module}_rows.weight\" }}")
        }));
        rules.extend(self.alone.iter().map(|path| {
            let disk = general(&text_model(self.whole_tensor(path)));
            let path = general(&text_model(path));
            format!("  - {{ disk: \"{disk}\", weight: \"{path}.weight\" }}")
        }));
        rules.extend(self.squeezed.iter().map(|path| {
            let disk = self.whole_tensor(path);
            let shape = self.record.disk.get(disk).map_or(&[][..], Vec::as_slice);
            let step = if shape.len() == 2 && shape[0] > 1 {
                // The first of several rows; others are of other modules.
                "[\"resize(1)\", squeeze(0)]".to_owned()
            } else if shape.len() == 2 {
                "squeeze(0)".to_owned()
            } else {
                format!("\"reshape([{}])\"", shape.iter().product::<usize>())
            };
            format!(
                "  - {{ disk: \"{}\", weight: \"{}\", do: {step} }}",
                general(&text_model(disk)),
                general(&text_model(path))
            )
        }));
        for term in &self.reader.graph.terms {
            rules.extend(crate::calls::mixture::renamed(term).iter().map(|(disk, weight)| {
                let [disk, weight] = [disk, weight].map(|path| general(&text_model(path)));
                format!("  - {{ disk: \"{disk}\", weight: \"{weight}\" }}")
            }));
        }
        rules.extend(self.matrices_of_choices());
        rules.extend(self.grouped.iter().map(|(path, count)| {
            let disk = general(&text_model(self.whole_tensor(path)));
            let path = general(&text_model(path.strip_suffix(".weight").unwrap_or(path)));
            format!(
                "  - {{ disk: \"{disk}\", weight: \"{path}\", do: \"unflatten(0, [{count}, 0])\" }}"
            )
        }));
        for (weight, sources) in &self.record.sources {
            let has_rule = self.squeezed.contains(weight)
                || self.alone.contains(weight)
                || self.grouped.iter().any(|(path, _)| path == weight);
            if has_rule || !self.is_read(weight) {
                continue;
            }
            for source in sources {
                if let Some(rule) = self.source_rule(weight, source) {
                    rules.push(rule);
                }
            }
        }
        for name in self.record.weights.keys().filter(|name| self.is_stack(name)) {
            let turned = self.record.sources.get(name).is_some_and(|sources| {
                sources.iter().any(|source| source.part == "whole" && source.turned)
            });
            let whole = self
                .record
                .sources
                .get(name)
                .and_then(|sources| sources.iter().find(|source| source.part == "whole"));
            if let Some(disk) = whole
                .map(|source| &source.disk)
                .or_else(|| self.record.disk.get_key_value(name).map(|(disk, _)| disk))
            {
                rules.extend(self.stack_rules(name, disk, turned));
            }
        }
        let mut unique: Vec<String> = Vec::new();
        for rule in rules {
            if !unique.contains(&rule) {
                unique.push(rule);
            }
        }
        if unique.is_empty() {
            String::new()
        } else {
            format!("\nweights:\n{}\n", unique.join("\n"))
        }
    }

    /// Rules for stacks of which each choice of a row takes a matrix.
    fn matrices_of_choices(&self) -> Vec<String> {
        let terms = self.reader.graph.terms.iter().filter(|term| term.op == "expert_linear");
        let stacks = terms.filter_map(|term| self.reader.graph.weight(term.inputs[2]));
        stacks
            .map(|stack| {
                let disk = general(&text_model(self.whole_tensor(stack)));
                let path = general(&text_model(stack.strip_suffix(".weight").unwrap_or(stack)));
                format!("  - {{ disk: \"{disk}\", weight: \"{path}.{{e}}.weight\", do: \"unstack(0)\" }}")
            })
            .collect()
    }

    /// The tensor of the checkpoint that has a weight.
    fn whole_tensor<'a>(&'a self, weight: &'a str) -> &'a str {
        let sources = self.record.sources.get(weight);
        sources.and_then(|sources| sources.first()).map_or(weight, |source| &source.disk)
    }

    /// Is true for a weight that the program reads.
    pub(super) fn is_read(&self, weight: &str) -> bool {
        self.reader.graph.terms.iter().any(|term| match (term.op.as_str(), term.word("path")) {
            ("weight", Some(path)) => path == weight,
            ("rope", _) => term.word("stretch") == Some(weight),
            (_, Some(path)) => weight.strip_prefix(path).is_some_and(|tail| tail.starts_with('.')),
            _ => false,
        })
    }

    /// The rule for a matrix of a stack of experts, or for a whole tensor of another name.
    fn source_rule(&self, weight: &str, source: &Source) -> Option<String> {
        let (module, tensor) = weight.rsplit_once('.')?;
        let module = general(&text_model(module));
        match source.part.as_str() {
            "rows" => return self.fused_rule(source),
            "piece" | "share" => return self.joined_rule(weight),
            _ => {}
        }
        let shared = source.part == "whole" && self.record.weights.contains_key(&source.disk);
        if shared || source.part == "whole" && self.is_stack(weight) {
            return None;
        }
        let gated = matches!(source.part.as_str(), "first" | "second" | "even" | "odd");
        let target = match (source.part.as_str(), tensor) {
            ("whole", _) => general(&text_model(weight)),
            ("first" | "even", "gate_up_proj") => {
                format!("{module}.{{e}}.gate_proj.weight")
            }
            ("second" | "odd", "gate_up_proj") => {
                format!("{module}.{{e}}.up_proj.weight")
            }
            ("matrix", name) => format!("{module}.{{e}}.{name}.weight"),
            _ => return None,
        };
        let disk = expert_general(&text_model(&source.disk), source.part != "whole");
        if gated && source.turned || disk == target {
            return None;
        }
        let step = if source.turned { ", do: [transpose]" } else { "" };
        Some(format!("  - {{ disk: \"{disk}\", weight: \"{target}\"{step} }}"))
    }

    /// Is true for a weight that holds the matrices of all experts.
    fn is_stack(&self, name: &str) -> bool {
        let Some((module, _)) = name.rsplit_once('.') else { return false };
        let ranks = if module_tail(name).ends_with("_bias") { 2 } else { 3 };
        self.record.weights.get(name).is_some_and(|facts| facts.shape.len() == ranks)
            && self
                .reader
                .graph
                .terms
                .iter()
                .any(|term| term.op == "experts" && term.word("path") == Some(module))
    }

    /// The rule for a weight that the checkpoint has in pieces.
    fn joined_rule(&self, weight: &str) -> Option<String> {
        let pieces: Vec<Vec<String>> = self
            .record
            .sources
            .get(weight)?
            .iter()
            .map(|source| {
                general(&text_model(&source.disk)).split('.').map(str::to_owned).collect()
            })
            .collect();
        let place = (0..pieces[0].len())
            .find(|&place| pieces.iter().any(|piece| piece.get(place) != pieces[0].get(place)))?;
        let words: Vec<&str> =
            pieces.iter().filter_map(|piece| piece.get(place).map(String::as_str)).collect();
        let mut path = pieces[0].clone();
        path[place] = format!("{{{}}}", words.join("|"));
        Some(format!(
            "  - {{ disk: \"{}\", weight: \"{}\", do: concat(0) }}",
            path.join("."),
            general(&text_model(weight))
        ))
    }

    /// The rule for weights that lie side by side in a tensor of the checkpoint.
    fn fused_rule(&self, source: &Source) -> Option<String> {
        let mut parts: Vec<(usize, usize, String)> = self
            .record
            .sources
            .iter()
            .flat_map(|(name, sources)| sources.iter().map(move |other| (name, other)))
            .filter(|(_, other)| other.part == "rows" && other.disk == source.disk)
            .map(|(name, other)| (other.from, other.to, general(&text_model(name))))
            .collect();
        parts.sort();
        let complete = parts.first()?.0 == 0 && parts.windows(2).all(|pair| pair[0].1 == pair[1].0);
        if !complete {
            return None;
        }
        let pieces: Vec<Vec<&str>> =
            parts.iter().map(|(_, _, path)| path.split('.').collect()).collect();
        let place = (0..pieces[0].len())
            .find(|&place| pieces.iter().any(|piece| piece.get(place) != pieces[0].get(place)))?;
        let words: Vec<&str> =
            pieces.iter().filter_map(|piece| piece.get(place).copied()).collect();
        let mut path: Vec<String> = pieces[0].iter().map(|part| (*part).to_owned()).collect();
        path[place] = format!("{{{}}}", words.join("|"));
        let sizes: Vec<String> =
            parts.iter().map(|(from, to, path)| self.rows_of(path, to - from)).collect();
        let even = sizes.iter().all(|size| *size == sizes[0]);
        let step = if even {
            format!("split(0, {})", sizes.len())
        } else {
            format!("split(0, [{}])", sizes.join(", "))
        };
        Some(format!(
            "  - {{ disk: \"{}\", weight: \"{}\", do: \"{step}\" }}",
            general(&text_model(&source.disk)),
            path.join(".")
        ))
    }

    /// The expression of a weight's first axis.
    fn rows_of(&self, path: &str, size: usize) -> String {
        let term = self.reader.graph.terms.iter().find(|term| {
            term.op == "weight"
                && term.word("path").is_some_and(|known| general(&text_model(known)) == path)
        });
        term.and_then(|term| term.shape.first())
            .map_or_else(|| size.to_string(), |dim| self.names.written(&dim.number))
    }

    /// Rules for experts that lie in one tensor on disk.
    fn stack_rules(&self, name: &str, disk: &str, turned_on_disk: bool) -> Vec<String> {
        let Some((module, tensor)) = name.rsplit_once('.') else { return Vec::new() };
        let disk = general(&text_model(disk));
        let base = general(&text_model(module));
        let term = self
            .reader
            .graph
            .terms
            .iter()
            .find(|term| term.op == "experts" && term.word("path") == Some(module));
        let is = |name: &str| term.is_some_and(|term| term.attribute(name).is_some());
        let turn = if is("turned") == turned_on_disk { "" } else { "transpose, " };
        let parts = if is("interleaved") {
            "\"unflatten(0, [0, 2])\", \"unstack(1)\""
        } else {
            "\"split(0, 2)\""
        };
        match tensor {
            "gate_up_proj" => vec![format!(
                "  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{{gate_proj|up_proj}}.weight\", do: [\"unstack(0)\", {turn}{parts}] }}"
            )],
            "down_proj" | "up_proj" if turn.is_empty() => vec![format!(
                "  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{tensor}.weight\", do: \"unstack(0)\" }}"
            )],
            "down_proj" | "up_proj" => vec![format!(
                "  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{tensor}.weight\", do: [\"unstack(0)\", transpose] }}"
            )],
            "gate_up_proj_bias" => vec![format!(
                "  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{{gate_proj|up_proj}}.bias\", do: [\"unstack(0)\", {parts}] }}"
            )],
            "down_proj_bias" => vec![format!(
                "  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.down_proj.bias\", do: \"unstack(0)\" }}"
            )],
            _ => Vec::new(),
        }
    }

    /// Weights that stay f32 in a run of 16 bits.
    pub(super) fn kept(&self) -> String {
        let mut paths: Vec<String> = self
            .record
            .weights
            .iter()
            .filter(|(_, facts)| facts.dtype == "float32")
            .map(|(path, _)| {
                let name = starred(&text_model(path));
                if self.alone.contains(path) { format!("{name}.weight") } else { name }
            })
            .collect();
        let terms = self.reader.graph.terms.iter().filter(|term| term.op == "choose_by_token");
        let tables = terms.filter_map(|term| self.reader.graph.weight(term.inputs[1]));
        paths.extend(tables.map(|path| starred(&text_model(path))));
        paths.dedup();
        let half: Vec<String> =
            self.record.kept_in_half.iter().map(|path| starred(&text_model(path))).collect();
        let mut text = String::new();
        for (key, mut paths) in [
            ("f32", paths.clone()),
            ("f32_in_f16", half.into_iter().filter(|path| !paths.contains(path)).collect()),
        ] {
            paths.sort();
            paths.dedup();
            let quoted: Vec<String> = paths.iter().map(|path| format!("\"{path}\"")).collect();
            if !quoted.is_empty() {
                if text.is_empty() {
                    text.push_str("\nkept:\n");
                }
                let _ = writeln!(text, "  {key}: [{}]", quoted.join(", "));
            }
        }
        paths.clear();
        text
    }
}

fn module_tail(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// A path of the checkpoint, whose last number is an expert's if it is of one.
fn expert_general(path: &str, expert: bool) -> String {
    let numbers =
        path.split('.').filter(|part| part.chars().all(|letter| letter.is_ascii_digit())).count();
    let mut seen = 0;
    path.split('.')
        .map(|part| {
            if !part.chars().all(|letter| letter.is_ascii_digit()) {
                return part.to_owned();
            }
            seen += 1;
            if expert && seen == numbers { "{e}".to_owned() } else { "{i}".to_owned() }
        })
        .collect::<Vec<_>>()
        .join(".")
}
