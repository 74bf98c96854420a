//! Kinds of layers, and the config keys that tell them apart.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::Sheet;
use super::keys::words_of;
use crate::names::Names;
use crate::number::Number;
use crate::record::Record;

impl Sheet<'_> {
    pub(super) fn kinds(&self, programs: &[(String, Vec<usize>)]) -> Kinds {
        if let [(program, _)] = programs {
            return Kinds {
                expression: None,
                is_guess: false,
                programs: vec![("\"*\"".to_owned(), program.clone())],
            };
        }
        let count = self.written.len();
        let program_of = |index: usize| {
            programs.iter().position(|(_, layers)| layers.contains(&index)).unwrap_or(0)
        };
        let inner = self.record.text_config();
        if let Some(object) = inner.as_object() {
            for (key, value) in object {
                let Some(words) = value.as_array().filter(|items| items.len() == count) else {
                    continue;
                };
                let words: Option<Vec<&str>> = words.iter().map(Json::as_str).collect();
                let Some(words) = words else { continue };
                let consistent = (0..count).all(|one| {
                    (0..count).all(|other| {
                        words[one] != words[other] || program_of(one) == program_of(other)
                    })
                });
                if !consistent {
                    continue;
                }
                let labelled = programs
                    .iter()
                    .map(|(program, layers)| {
                        let mut labels: Vec<&str> =
                            layers.iter().map(|&index| words[index]).collect();
                        labels.sort_unstable();
                        labels.dedup();
                        (labels.join("|"), program.clone())
                    })
                    .collect();
                let name = self.names.name(key);
                let expression = Some(format!("{name}[i]"));
                return Kinds { expression, is_guess: false, programs: labelled };
            }
        }
        let labels: Vec<String> =
            (0..programs.len()).map(|number| format!("kind_{}", number + 1)).collect();
        let (expression, is_guess) = condition(self.record, self.names, programs, count, &labels);
        let labelled = programs
            .iter()
            .zip(&labels)
            .map(|((program, _), label)| (label.clone(), program.clone()))
            .collect();
        Kinds { expression: Some(format!("\"{expression}\"")), is_guess, programs: labelled }
    }
}

pub(super) struct Kinds {
    pub(super) expression: Option<String>,
    /// True if no test of the class says which layers are of a kind, so that other layers are not known.
    pub(super) is_guess: bool,
    pub(super) programs: Vec<(String, String)>,
}

/// A test that depends on the number of the layer, and the layers where it holds.
struct Atom {
    test: Number,
    is_guess: bool,
    negated: bool,
    holds: Vec<bool>,
}

impl Atom {
    fn text(&self, names: &Names<'_>) -> String {
        let text = names.written(&self.test);
        if self.negated { format!("not ({text})") } else { text }
    }
}

/// Tests of the class and of lists in its config, with the layer's number in the place of literals.
fn atoms(record: &Record, count: usize) -> Vec<Atom> {
    let decided: Vec<Number> = record
        .decisions
        .iter()
        .filter(|decision| in_class(record, &decision.at))
        .map(|decision| Number::parse(&decision.test))
        .filter(|test| !test.reads("vision_config"))
        .collect();
    let mut by_instances: Vec<(usize, Number)> = Vec::new();
    for test in &decided {
        let mut literals = Vec::new();
        test.literals(&mut literals);
        for literal in literals.into_iter().filter(|literal| (0..=count as i64).contains(literal)) {
            for offset in [0, 1] {
                let layer =
                    Number::apply("+", vec![Number::Config("i".to_owned()), Number::Int(offset)]);
                let template = test.replaced(literal, &layer);
                if by_instances.iter().any(|(_, known)| *known == template) {
                    continue;
                }
                let instances = (0..count as i64)
                    .filter(|index| decided.contains(&template.at_layer(*index)))
                    .count();
                if instances > 1 || count == 1 {
                    by_instances.push((instances, template));
                }
            }
        }
    }
    // A test that the class made for each layer comes before one that fits some of them.
    by_instances.sort_by_key(|(instances, _)| std::cmp::Reverse(*instances));
    let mut tests: Vec<Number> = by_instances.into_iter().map(|(_, test)| test).collect();
    for (key, value) in record.text_config().as_object().into_iter().flatten() {
        if value.as_array().is_none_or(|items| items.len() != count) {
            continue;
        }
        let item = Number::Apply(
            "item".to_owned(),
            vec![Number::Config(key.clone()), Number::Config("i".to_owned())],
        );
        tests.extend(words_of(value).into_iter().map(|word| {
            Number::Apply("==".to_owned(), vec![item.clone(), Number::Word(word.to_owned())])
        }));
    }
    // Where two layers differ, nothing says that others are like the second.
    let first =
        Number::Apply("==".to_owned(), vec![Number::Config("i".to_owned()), Number::Int(0)]);
    let is_guess = count < 3 && !tests.contains(&first);
    tests.push(first.clone());
    let mut config = record.config.clone();
    let mut result: Vec<Atom> = Vec::new();
    for test in tests {
        let mut holds = Vec::new();
        for index in 0..count {
            if let Some(object) = config.as_object_mut() {
                object.insert("i".to_owned(), Json::from(index));
            }
            holds.push(test.evaluate(&config).map(|value| value != 0.0));
        }
        let Some(holds) = holds.into_iter().collect::<Option<Vec<bool>>>() else { continue };
        let varies = holds.iter().any(|truth| *truth != holds[0]);
        if varies && test.is_symbolic() {
            let opposite: Vec<bool> = holds.iter().map(|truth| !truth).collect();
            for (negated, holds) in [(false, holds), (true, opposite)] {
                if !result.iter().any(|atom| atom.test == test && atom.negated == negated) {
                    let is_guess = is_guess && test == first;
                    result.push(Atom { test: test.clone(), is_guess, negated, holds });
                }
            }
        }
    }
    result
}

/// An expression for the label of a layer's program, and whether it is a guess.
fn condition(
    record: &Record,
    names: &Names<'_>,
    programs: &[(String, Vec<usize>)],
    count: usize,
    labels: &[String],
) -> (String, bool) {
    let atoms = atoms(record, count);
    let mut is_guess = false;
    let mut remaining: Vec<usize> = (0..count).collect();
    let mut text = String::new();
    for (number, (_, layers)) in programs.iter().enumerate().take(programs.len() - 1) {
        let fits = |holds: &dyn Fn(usize) -> bool| {
            remaining.iter().all(|&index| holds(index) == layers.contains(&index))
        };
        let single = atoms.iter().find(|atom| fits(&|index| atom.holds[index]));
        is_guess |= single.is_some_and(|atom| atom.is_guess);
        let single = single.map(|atom| atom.text(names));
        let pair = || {
            for one in &atoms {
                for other in &atoms {
                    if fits(&|index| one.holds[index] && other.holds[index]) {
                        return Some(format!("{} and {}", one.text(names), other.text(names)));
                    }
                }
            }
            None
        };
        let Some(test) = single.or_else(pair) else {
            let list: Vec<String> = (0..count)
                .map(|index| {
                    programs
                        .iter()
                        .position(|(_, layers)| layers.contains(&index))
                        .map_or_else(String::new, |number| format!("'{}'", labels[number]))
                })
                .collect();
            return (format!("[{}][i]", list.join(", ")), true);
        };
        let _ = write!(text, "'{}' if {test} else ", labels[number]);
        remaining.retain(|index| !layers.contains(index));
    }
    (format!("{text}'{}'", labels[labels.len() - 1]), is_guess)
}

/// Is true for a place in a file of classes, and not of what they share.
fn in_class(record: &Record, at: &str) -> bool {
    let file = record.file.rsplit('.').next().unwrap_or_default();
    let is_shared = at.starts_with("modeling_rope_utils");
    (at.starts_with("modeling_") && !is_shared)
        || at.split(':').next() == Some(&format!("{file}.py"))
}
