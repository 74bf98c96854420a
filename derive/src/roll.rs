//! From terms to a spec: layers that repeat, their kinds, and the program around them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::carry::{self, Carried, Stream};
use crate::graph::{Id, Term};
use crate::hole::Hole;
use crate::names::Names;
use crate::number::Number;
use crate::origin::Origin;
use crate::read::{Forward, Reader};
use crate::record::Record;
use crate::sheet::{Layer, Sheet};
use crate::write::{GIVEN, Program, Writer};

/// A spec with what is left open.
#[derive(Debug)]
pub struct Derived {
    /// Text of the spec.
    pub spec: String,
    /// Calls and terms that no op explains.
    pub holes: Vec<Hole>,
    /// Modules that its functions and the programs of its layers describe.
    pub origins: Vec<Origin>,
}

/// Derives a spec from a record.
pub fn derive(record: &Record, name: &str) -> Derived {
    let reader = Reader::read(record);
    let names = Names::new(record);
    let mut holes: Vec<Hole> = Vec::new();
    let faults = RefCell::new(Vec::new());
    let transposed = RefCell::new(Vec::new());
    let squeezed = RefCell::new(Vec::new());
    let inner = RefCell::new(Vec::new());
    let bare = RefCell::new(Vec::new());
    let alone = RefCell::new(Vec::new());
    let shared = RefCell::new(BTreeMap::new());
    let grouped = RefCell::new(Vec::new());
    let outputs = module_outputs(&reader);
    let states = RefCell::new(Vec::new());
    let activations = activation_keys(record);
    let tables = table_names(&reader);
    let Some((list, layers)) = repeated(&reader) else {
        holes.push(Hole::of_module(&record.class, "no list of layers runs one after the other"));
        return Derived { spec: String::new(), holes, origins: Vec::new() };
    };
    name_sizes(&reader, &names, layers.len());
    let embedding = reader
        .graph
        .terms
        .iter()
        .find(|term| term.op == "embed")
        .and_then(|term| reader.graph.weight(term.inputs[1]))
        .and_then(|path| path.strip_suffix(".weight"))
        .map(crate::write::text_model);
    let writer = |prefix: &str, layer: Option<i64>, cache_layers: Vec<i64>| Writer {
        states: &states,
        layer,
        cache_layers,
        graph: &reader.graph,
        names: &names,
        tables: &tables,
        prefix: prefix.to_owned(),
        faults: &faults,
        output: record.output.clone(),
        embedding: embedding.clone(),
        outputs: &outputs,
        inner: &inner,
        bare: &bare,
        alone: &alone,
        shared: &shared,
        grouped: &grouped,
        kept_in_half: &record.kept_in_half,
        transposed: &transposed,
        squeezed: &squeezed,
        activations: &activations,
    };
    let streams: Vec<Stream> = layers.iter().filter_map(|layer| stream(&reader, layer)).collect();
    if streams.len() < layers.len() {
        for layer in layers.iter().filter(|layer| stream(&reader, layer).is_none()) {
            holes.extend(calls_without_term(&reader, layer));
            holes.push(Hole::of_module(&layer.path, "no rows go through the layer"));
        }
        return Derived { spec: String::new(), holes, origins: Vec::new() };
    }
    let (streams, between) = match carry::linked(&reader, &streams) {
        Ok(linked) => linked,
        Err(number) => {
            let reason = "other rows go through the layer than the one before gave";
            holes.push(Hole::of_module(&layers[number].path, reason));
            (streams, Vec::new())
        }
    };
    let cache: Vec<Vec<i64>> = layers.iter().map(|layer| cache_layers(&reader, layer)).collect();
    let carried = carry::find(&reader, &layers, &streams, &cache, &between);
    let mut written = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let prefix = format!("{}.", layer.path);
        let writer = writer(&prefix, Some(number as i64), cache[number].clone());
        written.push(write_layer(&reader, &writer, number, streams[number], &carried));
    }
    let wide = widen_first(&mut written);
    let model = write_model(&reader, &writer("", None, Vec::new()), &streams, &carried, wide);
    holes.extend(faults.borrow().iter().cloned());
    holes.sort();
    holes.dedup();
    let origins = RefCell::new(Vec::new());
    let spec = Sheet {
        origins: &origins,
        record,
        reader: &reader,
        names: &names,
        tables: &tables,
        list: &list,
        carry: carried.iter().map(|value| value.name.clone()).collect(),
        written,
        model,
        transposed: transposed.into_inner(),
        squeezed: squeezed.into_inner(),
        inner: inner.into_inner(),
        alone: alone.into_inner(),
        shared: shared.into_inner(),
        grouped: grouped.into_inner(),
        states: states.into_inner(),
    }
    .text(name);
    let mut bare = bare.into_inner();
    bare.sort();
    bare.dedup();
    let spec = if bare.is_empty() {
        spec
    } else {
        format!("# Sizes that no config key gives: {}.\n{spec}", bare.join(", "))
    };
    Derived { spec, holes, origins: origins.into_inner() }
}

/// Config keys that name an activation which the class looked up.
fn activation_keys(record: &Record) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    for decision in &record.decisions {
        let Number::Apply(operator, operands) = Number::parse(&decision.test) else { continue };
        let ([Number::Config(key), Number::Word(word)], "==", true) =
            (operands.as_slice(), operator.as_str(), decision.outcome)
        else {
            continue;
        };
        let Some(op) = registry::ops::activation_op(word) else { continue };
        if !keys.iter().any(|(known, _)| known == key) {
            keys.push((key.clone(), op.to_owned()));
        }
    }
    keys
}

fn table_names(reader: &Reader<'_>) -> Vec<(String, String)> {
    let mut tables = reader.tables.clone();
    for term in reader.graph.terms.iter().filter(|term| term.op == "rope") {
        if let Some(table) =
            term.word("table").filter(|table| !tables.iter().any(|known| known == table))
        {
            tables.push(table.to_owned());
        }
    }
    let several = tables.len() > 1;
    tables
        .iter()
        .map(|table| {
            let word = table.rsplit(['.', ':']).next().unwrap_or("main").replace("_attention", "");
            let name = if !several {
                "main".to_owned()
            } else if word.starts_with(|letter: char| letter.is_ascii_digit()) {
                format!("table_{word}")
            } else {
                word
            };
            (table.clone(), name)
        })
        .collect()
}

/// The list of modules that repeat: its path, and their forwards in order.
fn repeated<'r>(reader: &'r Reader<'_>) -> Option<(String, Vec<&'r Forward>)> {
    let mut best: Option<(String, Vec<&Forward>)> = None;
    for (path, facts) in &reader.record.modules {
        if facts.class != "ModuleList" {
            continue;
        }
        let mut forwards: Vec<(usize, &Forward)> = Vec::new();
        for forward in &reader.forwards {
            let Some(index) = forward
                .path
                .strip_prefix(path.as_str())
                .and_then(|tail| tail.strip_prefix('.'))
                .and_then(|tail| tail.parse().ok())
            else {
                continue;
            };
            forwards.push((index, forward));
        }
        let in_order = forwards.iter().enumerate().all(|(place, (index, _))| place == *index);
        let nested = path.split('.').any(|part| part.chars().all(|letter| letter.is_ascii_digit()));
        if !in_order
            || forwards.is_empty()
            || nested
            || forwards.iter().any(|(_, forward)| forward.outputs.is_empty())
        {
            continue;
        }
        if best.as_ref().is_none_or(|(_, known)| known.len() < forwards.len()) {
            best = Some((path.clone(), forwards.into_iter().map(|(_, forward)| forward).collect()));
        }
    }
    best
}

/// Gives the sizes that every spec names their names.
fn name_sizes(reader: &Reader<'_>, names: &Names<'_>, count: usize) {
    let logits = reader.record.runs[0]
        .logits
        .and_then(|number| reader.values.get(&number))
        .map(|value| reader.graph.term(value.id).width().number);
    if let Some(Number::Config(key)) = &logits {
        names.give(key, "vocab");
    }
    for term in &reader.graph.terms {
        if term.op == "embed"
            && term.inputs.first().is_some_and(|&id| reader.graph.term(id).op == "tokens")
        {
            if let Some(Number::Config(key)) = term.attribute("rows") {
                names.give(key, "vocab");
                names.give(key, "input_vocab");
            }
            if let Number::Config(key) = &term.width().number {
                names.give(key, "hidden");
            }
            break;
        }
    }
    let keys = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
    let inner = reader.record.text_config();
    let lists = inner.as_object().into_iter().flatten().find(|(_, value)| {
        value.as_array().is_some_and(|items| items.len() == count && items[0].is_string())
    });
    if let (None, Some((list, _))) = (keys.iter().find(|key| inner.get(**key).is_some()), lists) {
        names.compute("layers", &format!("= len({})", names.name(list)));
    }
    let key = keys.iter().find(|key| inner.get(**key).and_then(Json::as_u64) == Some(count as u64));
    names.give(key.copied().unwrap_or("num_hidden_layers"), "layers");
    for key in ["hidden_size", "vocab_size"] {
        names.name(key);
    }
    if reader.record.config.get("max_position_embeddings").is_some() {
        names.give("max_position_embeddings", "context");
    }
}

/// Rows that a layer changes: its first input of the width of its first output.
fn stream(reader: &Reader<'_>, layer: &Forward) -> Option<(Id, Id)> {
    let output = *layer.outputs.first()?;
    let shape = &reader.graph.term(output).shape;
    let input = layer.inputs.iter().copied().find(|&id| {
        let term = reader.graph.term(id);
        term.shape.len() == shape.len()
            && term.width().size == reader.graph.term(output).width().size
            && !["tokens", "mask", "positions"].contains(&term.op.as_str())
    })?;
    Some((input, output))
}

/// Terms that the modules of a layer compute.
fn terms_of<'r>(reader: &'r Reader<'_>, layer: &Forward) -> impl Iterator<Item = &'r Term> {
    let path = layer.path.clone();
    let prefix = format!("{path}.");
    let terms = reader.graph.terms.iter();
    terms.filter(move |term| term.owner == path || term.owner.starts_with(&prefix))
}

/// Calls in a layer that have no term.
fn calls_without_term(reader: &Reader<'_>, layer: &Forward) -> Vec<Hole> {
    let calls = terms_of(reader, layer).filter(|term| term.op.starts_with("hole_"));
    calls
        .map(|term| Hole {
            place: term.at.clone(),
            module: term.owner.clone(),
            reason: term.word("reason").unwrap_or_default().to_owned(),
            tree: String::new(),
        })
        .collect()
}

/// Terms from the outputs down to the parameters, in order of their making.
fn reach(
    reader: &Reader<'_>,
    outputs: &[Id],
    parameters: &[Id],
    own_layers: Option<&[i64]>,
) -> Vec<Id> {
    let mut open = outputs.to_vec();
    let mut reached = Vec::new();
    while let Some(id) = open.pop() {
        if parameters.contains(&id) || reached.contains(&id) {
            continue;
        }
        reached.push(id);
        let term = reader.graph.term(id);
        let read = if own_layers.is_some_and(|own| borrows(term, own)) { 1 } else { usize::MAX };
        open.extend(term.inputs.iter().take(read).copied());
    }
    reached.sort_unstable();
    reached
}

/// Layers of the cache that a layer of the model writes.
fn cache_layers(reader: &Reader<'_>, layer: &Forward) -> Vec<i64> {
    let mut layers: Vec<i64> = terms_of(reader, layer)
        .filter(|term| term.op == "cached")
        .filter_map(|term| match term.attribute("layer") {
            Some(Number::Int(layer)) => Some(*layer),
            _ => None,
        })
        .collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

/// First results of the forwards of each module, which dumps have.
fn module_outputs(reader: &Reader<'_>) -> BTreeMap<String, Vec<Id>> {
    let mut outputs: BTreeMap<String, Vec<Id>> = BTreeMap::new();
    for forward in &reader.forwards {
        outputs.entry(forward.path.clone()).or_default().extend(forward.outputs.first());
    }
    outputs
}

/// Is true for attention to the keys of a layer before.
pub(crate) fn borrows(term: &Term, own_layers: &[i64]) -> bool {
    let layer = match term.attribute("layer") {
        Some(Number::Int(layer)) => *layer,
        _ => return false,
    };
    term.op == "attend" && !own_layers.contains(&layer)
}

fn write_layer(
    reader: &Reader<'_>,
    writer: &Writer<'_>,
    number: usize,
    (input, output): Stream,
    carried: &[Carried],
) -> Layer {
    let taken: Vec<(Id, String)> = std::iter::once((input, "x".to_owned()))
        .chain(carried.iter().filter_map(|value| Some((value.read[number]?, value.name.clone()))))
        .collect();
    let sets = carried.iter().any(|value| value.made[number].is_some());
    let made = carried.iter().filter(|_| sets).filter_map(|value| value.made[number]);
    let given: Vec<Id> = std::iter::once(output).chain(made).collect();
    let inputs: Vec<Id> = taken.iter().map(|(id, _)| *id).collect();
    let reached = reach(reader, &given, &inputs, Some(&writer.cache_layers));
    let child_of = |id: Id| -> Option<String> {
        let owner = &reader.graph.term(id).owner;
        owner
            .strip_prefix(&writer.prefix)
            .map(|tail| tail.split('.').next().unwrap_or_default().to_owned())
    };
    let mut groups: BTreeMap<String, Vec<Id>> = BTreeMap::new();
    for &id in &reached {
        if reader.graph.term(id).op == "weight" || reader.graph.term(id).op == "constant" {
            continue;
        }
        if let Some(child) = child_of(id) {
            groups.entry(child).or_default().push(id);
        }
    }
    let mut functions = BTreeMap::new();
    let mut modules = BTreeMap::new();
    let mut calls: Vec<(Id, String, Vec<Id>)> = Vec::new();
    for (child, members) in groups {
        let weights = members
            .iter()
            .flat_map(|&id| reader.graph.term(id).inputs.iter())
            .filter(|&&id| reader.graph.term(id).op == "weight")
            .count();
        if members.len() < 3 || weights < 2 {
            continue;
        }
        let outputs: Vec<Id> = members
            .iter()
            .copied()
            .filter(|&id| {
                given.contains(&id)
                    || reached.iter().any(|&user| {
                        !members.contains(&user) && reader.graph.term(user).inputs.contains(&id)
                    })
            })
            .collect();
        let [result] = outputs[..] else { continue };
        let mut parameters: Vec<Id> = Vec::new();
        for &id in &members {
            let term = reader.graph.term(id);
            let read = if borrows(term, &writer.cache_layers) { 1 } else { usize::MAX };
            for &source in term.inputs.iter().take(read) {
                let op = reader.graph.term(source).op.as_str();
                if !members.contains(&source)
                    && !parameters.contains(&source)
                    && op != "weight"
                    && !GIVEN.contains(&op)
                {
                    parameters.push(source);
                }
            }
        }
        if parameters.is_empty() || parameters.len() > 4 {
            continue;
        }
        let named: Vec<(Id, String)> = parameters
            .iter()
            .enumerate()
            .map(|(number, &id)| {
                (id, if number == 0 { "x".to_owned() } else { format!("x{}", number + 1) })
            })
            .collect();
        let attends = members
            .iter()
            .any(|&id| ["attend", "latent_attend"].contains(&reader.graph.term(id).op.as_str()));
        let function = if attends { "attention".to_owned() } else { function_name(&child) };
        let program = Program::new(writer, &named, &[result]).finish(&[result]);
        let header: Vec<String> = named.iter().map(|(_, name)| name.clone()).collect();
        let header = format!("{function}({})", header.join(", "));
        modules.insert(header.clone(), format!("{}{child}", writer.prefix));
        functions.insert(header, program);
        calls.push((result, function, parameters));
    }
    let mut program = Program::new(writer, &taken, &given);
    calls.sort_by_key(|(result, ..)| *result);
    for (result, function, parameters) in calls {
        let arguments: Vec<String> = parameters.iter().map(|&id| program.value(id)).collect();
        program.call(result, format!("{function}({})", arguments.join(", ")));
    }
    let mut results = vec![program.value(output)];
    for value in carried.iter().filter(|_| sets) {
        results.push(value.made[number].map_or_else(|| value.name.clone(), |id| program.value(id)));
    }
    let path = writer.prefix.trim_end_matches('.').to_owned();
    Layer { program: program.finish_with(&results), functions, path, modules }
}

/// Gives the first layer the program of a later one, if they differ by casts of their input alone: rows that layers widen to f32 are wide from the first on.
fn widen_first(layers: &mut [Layer]) -> bool {
    let Some((first, others)) = layers.split_first_mut() else { return false };
    let Some(other) = others.iter().find(|other| {
        other.program != first.program && uncast(&other.program) == uncast(&first.program)
    }) else {
        return false;
    };
    let same_functions = other.functions.len() == first.functions.len()
        && other
            .functions
            .iter()
            .zip(&first.functions)
            .all(|((one, text), (other, known))| one == other && uncast(text) == uncast(known));
    if same_functions {
        first.program.clone_from(&other.program);
        first.functions.clone_from(&other.functions);
    }
    same_functions
}

/// A program without its casts.
fn uncast(text: &str) -> String {
    let mut result = text.to_owned();
    while let Some(at) = result.find("cast(") {
        let mut depth = 0;
        let end = result[at..].char_indices().find_map(|(place, letter)| {
            match letter {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            (letter == ')' && depth == 0).then_some(at + place)
        });
        let Some(end) = end else { break };
        let inner = result[at + 5..end].rsplit_once(", ").map_or("", |(inner, _)| inner).to_owned();
        result.replace_range(at..=end, &inner);
    }
    result
}

fn function_name(child: &str) -> String {
    let taken = ["attention", "experts", "linear", "norm", "heads", "conv"];
    if taken.contains(&child) { format!("{child}_block") } else { child.to_owned() }
}

fn write_model(
    reader: &Reader<'_>,
    writer: &Writer<'_>,
    streams: &[Stream],
    carried: &[Carried],
    wide: bool,
) -> String {
    let logits = reader.record.runs[0].logits.and_then(|number| reader.values.get(&number));
    let (Some(logits), Some(&(first, _)), Some(&(_, last))) =
        (logits, streams.first(), streams.last())
    else {
        return "hole_logits".to_owned();
    };
    let initial: Vec<(&str, Id)> =
        carried.iter().filter_map(|value| Some((value.name.as_str(), value.initial?))).collect();
    let outputs: Vec<Id> =
        std::iter::once(first).chain(initial.iter().map(|(_, id)| *id)).collect();
    let mut before = Program::new(writer, &[], &outputs);
    let embedded = before.value(first);
    let embedded = if wide { format!("cast({embedded}, 'f32')") } else { embedded };
    let given: Vec<String> =
        initial.iter().map(|(name, id)| format!(", {name}={}", before.value(*id))).collect();
    let mut lines = before.into_lines();
    lines.push(format!("x = layers({embedded}{})", given.concat()));
    let head = reader.graph.term(logits.id);
    let output = if head.op == "cast" { head.inputs[0] } else { logits.id };
    let after = Program::new(writer, &[(last, "x".to_owned())], &[output]);
    lines.push(after.finish(&[output]));
    lines.join("\n")
}
