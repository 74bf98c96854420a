//! Rotary tables.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::Sheet;
use crate::graph::Term;
use crate::number::{self, Number};
use crate::record::BuiltCall;

impl Sheet<'_> {
    /// A number that a class used when it was built, of the calls for a layer type those that name it.
    fn built_number(
        &self,
        class: &str,
        layer_type: Option<&str>,
        calls: &[&str],
        number: impl Fn(&BuiltCall) -> Option<Number>,
    ) -> Option<Number> {
        if class.is_empty() {
            return None;
        }
        let numbers: Vec<Number> = self
            .record
            .built
            .iter()
            .filter(|call| calls.contains(&call.call.as_str()) && call.inside.contains(class))
            .filter_map(number)
            .collect();
        let names = |number: &Number, word: &str| {
            let mut keys = Vec::new();
            number.keys(&mut keys);
            keys.iter().any(|key| key.contains(word))
        };
        let own = layer_type.and_then(|word| numbers.iter().find(|number| names(number, word)));
        own.or_else(|| {
            numbers.iter().find(|number| layer_type.is_none() || !names(number, "_attention"))
        })
        .cloned()
    }

    /// A rotation by a table: of a head as wide as the table, or the widest.
    fn rope_of(&self, table: &str, rotated: Option<&Number>) -> Option<&Term> {
        let size = rotated.and_then(|number| number.evaluate(&self.record.config));
        let terms = self.reader.graph.terms.iter();
        terms
            .filter(|term| term.op == "rope" && term.word("table") == Some(table))
            .max_by_key(|term| (Some(term.width().size as f64) == size, term.width().size))
    }

    pub(super) fn ropes(&self) -> String {
        let mut text = String::new();
        for (table, name) in self.tables {
            let module = table.split(':').next().unwrap_or_default();
            let layer_type = table.split_once(':').map(|(_, word)| word.to_owned());
            let class = self.record.modules.get(module).map_or("", |facts| facts.class.as_str());
            let rotated = self.built_number(class, layer_type.as_deref(), &["arange"], |call| {
                call.args.get(1).map(Number::parse)
            });
            let Some(rope) = self.rope_of(table, rotated.as_ref()) else { continue };
            if text.is_empty() {
                text.push_str("\nrope:\n");
            }
            let _ = writeln!(text, "  {name}:");
            let width = rope.width();
            let dim = self.names.written(&width.number);
            if dim != "head_dim" {
                let _ = writeln!(text, "    dim: {dim}");
            }
            let parameters = match &layer_type {
                Some(word) => format!("rope_parameters.{word}"),
                None => "rope_parameters".to_owned(),
            };
            let rotated = rotated.or_else(|| rope.attribute("rotated").cloned());
            if let Some(partial) = rotated
                .and_then(|number| partial_share(&number, &width.number, &self.record.config))
            {
                let _ = writeln!(text, "    partial: {}", self.names.written(&partial));
            }
            let base = self.built_number(
                class,
                layer_type.as_deref(),
                &["pow", "__rpow__", "__pow__"],
                |call| call.args.iter().map(Number::parse).find(Number::is_symbolic),
            );
            let usual =
                |base: &Number| matches!(base, Number::Config(key) if key.ends_with("rope_theta"));
            let own = rope.attribute("theta").cloned().or(base).filter(|base| !usual(base));
            if let Some(base) = own {
                let _ = writeln!(text, "    theta: \"= {}\"", self.names.written(&base));
                let _ = writeln!(text, "    parameters: = null");
                continue;
            }
            let theta = number::look_up(&self.record.defaults, "rope_parameters.rope_theta")
                .and_then(crate::names::literal)
                .unwrap_or_else(|| "10000.0".to_owned());
            let _ = writeln!(text, "    theta: [{parameters}.rope_theta, rope_theta, = {theta}]");
            if self.is_unscaled(module, &parameters) {
                let _ = writeln!(text, "    parameters: = null");
                continue;
            }
            let _ = writeln!(
                text,
                "    parameters: [{parameters}{}]",
                if layer_type.is_some() { "" } else { ", rope_scaling" }
            );
        }
        text
    }

    /// Is true for a table of plain frequencies, whatever scaling the config asks for.
    fn is_unscaled(&self, module: &str, parameters: &str) -> bool {
        let Some(parameters) = number::look_up(&self.record.config, parameters) else {
            return false;
        };
        let scaled = parameters.get("rope_type").is_some_and(|word| word != "default");
        let theta = parameters.get("rope_theta").and_then(Json::as_f64);
        let buffer = self.record.buffers.get(&format!("{module}.inv_freq"));
        let numbers = buffer.and_then(|buffer| buffer.numbers.as_deref()).unwrap_or_default();
        let count = numbers.len() as f64;
        scaled
            && !numbers.is_empty()
            && theta.is_some_and(|theta| {
                numbers.iter().enumerate().all(|(place, number)| {
                    let plain = theta.powf(-(place as f64) / count);
                    number.as_f64().is_some_and(|number| (number - plain).abs() <= 1e-5 * plain)
                })
            })
    }
}

/// The share of a head that a table rotates, if it is not the whole.
fn partial_share(rotated: &Number, width: &Number, config: &Json) -> Option<Number> {
    if rotated == width {
        return None;
    }
    let (share, whole) = (rotated.evaluate(config)?, width.evaluate(config)?);
    if share == whole && rotated.is_symbolic() {
        // A table of all numbers of a head, whatever the share in the config says.
        return matches!(rotated, Number::Apply(operator, _) if operator == "int")
            .then_some(Number::Real(1.0));
    }
    let is_share = |part: f64| part <= 1.0 && (part * whole).floor() == share;
    let factor = match rotated {
        Number::Apply(operator, operands) if operator == "*" && operands.len() == 2 => {
            operands.iter().find(|operand| operand.evaluate(config).is_some_and(is_share)).cloned()
        }
        Number::Apply(operator, operands) if operator == "int" => {
            return partial_share(&operands[0], width, config);
        }
        _ => None,
    };
    factor.or_else(|| {
        (share < whole).then(|| Number::apply("/", vec![rotated.clone(), width.clone()]))
    })
}
