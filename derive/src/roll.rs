//! From terms to a spec: layers that repeat, their kinds, and the program around them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value as Json;

use crate::graph::Id;
use crate::names::Names;
use crate::number::{self, Number};
use crate::read::{Forward, Reader};
use crate::record::Record;
use crate::write::{Program, Writer};

/// A spec with what is left open.
#[derive(Debug)]
pub struct Derived {
    /// Text of the spec.
    pub spec: String,
    /// Calls and terms that no op explains.
    pub holes: Vec<String>,
    /// Where its functions and the programs of its layers come from.
    pub origins: Vec<Origin>,
}

/// The modules of a class that a function or a layer program of a spec describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Name of the function, or of the kind of layers.
    pub name: String,
    /// Paths of the modules.
    pub modules: Vec<String>,
    /// The Python class of the modules.
    pub class: String,
}

/// Names of activations in configs, and the ops.
const ACTIVATION_WORDS: &[(&str, &str)] = &[
    ("silu", "silu"), ("swish", "silu"), ("gelu", "gelu"), ("gelu_new", "gelu_new"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu_fast", "gelu_fast"), ("relu", "relu"),
    ("relu2", "relu2"), ("quick_gelu", "quick_gelu"),
];

/// A program of one layer with its functions.
struct Layer {
    program: String,
    functions: BTreeMap<String, String>,
    /// Path of the layer's module, and of the module of each function.
    path: String,
    modules: BTreeMap<String, String>,
}

/// Derives a spec from a record.
pub fn derive(record: &Record, name: &str) -> Derived {
    let reader = Reader::read(record);
    let names = Names::new(record);
    let mut holes: Vec<String> = Vec::new();
    let faults = RefCell::new(Vec::new());
    let transposed = RefCell::new(Vec::new());
    let squeezed = RefCell::new(Vec::new());
    let states = RefCell::new(Vec::new());
    let activations = activation_keys(record);
    let tables = table_names(&reader);
    let Some((list, layers)) = repeated(&reader) else {
        holes.push("no list of layers runs in the forward".to_owned());
        return Derived { spec: String::new(), holes, origins: Vec::new() };
    };
    name_sizes(&reader, &names, layers.len());
    let embedding = reader.graph.terms.iter().find(|term| term.op == "embed").and_then(|term| reader.graph.weight(term.inputs[1]))
        .and_then(|path| path.strip_suffix(".weight")).map(crate::write::text_model);
    let writer = |prefix: &str, layer: Option<i64>, cache_layers: Vec<i64>| Writer {
        states: &states, layer, cache_layers,
        graph: &reader.graph, names: &names, tables: &tables, prefix: prefix.to_owned(), faults: &faults,
        output: record.output.clone(), embedding: embedding.clone(), can_tie: record.config.get("tie_word_embeddings").is_some(), transposed: &transposed, squeezed: &squeezed, activations: &activations,
    };
    let mut written = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        match write_layer(&reader, &writer(&format!("{}.", layer.path), Some(number as i64), cache_layers(&reader, layer)), layer) {
            Ok(program) => written.push(program),
            Err(reason) => holes.push(reason),
        }
    }
    let wide = widen_first(&mut written);
    if written.len() < layers.len() {
        return Derived { spec: String::new(), holes, origins: Vec::new() };
    }
    let model = write_model(&reader, &writer("", None, Vec::new()), &layers, wide);
    holes.extend(faults.borrow().iter().cloned());
    holes.sort();
    holes.dedup();
    let origins = RefCell::new(Vec::new());
    let spec = Sheet { origins: &origins, record, reader: &reader, names: &names, tables: &tables, list: &list, written, model, transposed: transposed.into_inner(), squeezed: squeezed.into_inner(), states: states.into_inner() }.text(name);
    Derived { spec, holes, origins: origins.into_inner() }
}

/// Config keys that name an activation which the class looked up.
fn activation_keys(record: &Record) -> Vec<(String, String)> {
    let mut keys = Vec::new();
    for decision in &record.decisions {
        let Number::Apply(operator, operands) = Number::parse(&decision.test) else { continue };
        let ([Number::Config(key), Number::Word(word)], "==", true) = (operands.as_slice(), operator.as_str(), decision.outcome) else { continue };
        let Some((_, op)) = ACTIVATION_WORDS.iter().find(|(known, _)| known == word) else { continue };
        if !keys.iter().any(|(known, _)| known == key) {
            keys.push((key.clone(), (*op).to_owned()));
        }
    }
    keys
}

fn table_names(reader: &Reader<'_>) -> Vec<(String, String)> {
    let several = reader.tables.len() > 1;
    reader.tables.iter().map(|table| {
        let name = if !several { "main".to_owned() } else { table.rsplit(['.', ':']).next().unwrap_or("main").replace("_attention", "") };
        (table.clone(), name)
    }).collect()
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
            let Some(index) = forward.path.strip_prefix(path.as_str()).and_then(|tail| tail.strip_prefix('.')).and_then(|tail| tail.parse().ok()) else { continue };
            forwards.push((index, forward));
        }
        let in_order = forwards.iter().enumerate().all(|(place, (index, _))| place == *index);
        let nested = path.split('.').any(|part| part.chars().all(|letter| letter.is_ascii_digit()));
        if !in_order || forwards.is_empty() || nested || forwards.iter().any(|(_, forward)| forward.outputs.is_empty()) {
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
    let logits = reader.record.runs[0].logits.and_then(|number| reader.values.get(&number)).map(|value| reader.graph.term(value.id).width().number);
    if let Some(Number::Config(key)) = &logits {
        names.give(key, "vocab");
    }
    for term in &reader.graph.terms {
        if term.op == "embed" && term.inputs.first().is_some_and(|&id| reader.graph.term(id).op == "tokens") {
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
    let inner = reader.record.config.get("text_config").unwrap_or(&reader.record.config);
    let lists = inner.as_object().into_iter().flatten().find(|(_, value)| value.as_array().is_some_and(|items| items.len() == count && items[0].is_string()));
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
        term.shape.len() == shape.len() && term.width().size == reader.graph.term(output).width().size && !["tokens", "mask", "positions"].contains(&term.op.as_str())
    })?;
    Some((input, output))
}

/// Terms from the outputs down to the parameters, in order of their making.
fn reach(reader: &Reader<'_>, outputs: &[Id], parameters: &[Id], own_layers: Option<&[i64]>) -> Vec<Id> {
    let mut open = outputs.to_vec();
    let mut reached = Vec::new();
    while let Some(id) = open.pop() {
        if parameters.contains(&id) || reached.contains(&id) {
            continue;
        }
        reached.push(id);
        let term = reader.graph.term(id);
        let borrows = matches!((term.op.as_str(), term.attribute("layer")), ("attend", Some(Number::Int(layer))) if own_layers.is_some_and(|own| !own.contains(layer)));
        open.extend(term.inputs.iter().take(if borrows { 1 } else { usize::MAX }).copied());
    }
    reached.sort_unstable();
    reached
}

/// Layers of the cache that a layer of the model writes.
fn cache_layers(reader: &Reader<'_>, layer: &Forward) -> Vec<i64> {
    let prefix = format!("{}.", layer.path);
    let mut layers: Vec<i64> = reader.graph.terms.iter().filter(|term| term.op == "cached" && (term.owner == layer.path || term.owner.starts_with(&prefix)))
        .filter_map(|term| match term.attribute("layer") { Some(Number::Int(layer)) => Some(*layer), _ => None }).collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

/// Which terms depend on the tokens' embeddings.
fn varying(reader: &Reader<'_>) -> Vec<bool> {
    let mut varies: Vec<bool> = Vec::with_capacity(reader.graph.terms.len());
    for term in &reader.graph.terms {
        varies.push(term.op == "embed" || term.inputs.iter().any(|&input| varies[input]));
    }
    varies
}

fn write_layer(reader: &Reader<'_>, writer: &Writer<'_>, layer: &Forward) -> Result<Layer, String> {
    let (input, output) = stream(reader, layer).ok_or_else(|| format!("{}: no rows go through the layer", layer.path))?;
    let reached = reach(reader, &[output], &[input], Some(&writer.cache_layers));
    let varies = varying(reader);
    let list = layer.path.rsplit_once('.').map_or("", |(list, _)| list);
    let other = reached.iter().map(|&id| (id, reader.graph.term(id))).find(|&(id, term)| varies[id] && term.owner.starts_with(&format!("{list}.")) && term.owner != layer.path && !term.owner.starts_with(&writer.prefix));
    if let Some((_, term)) = other {
        return Err(format!("{}: reads `{}` of {}", layer.path, term.op, term.owner));
    }
    let child_of = |id: Id| -> Option<String> {
        let owner = &reader.graph.term(id).owner;
        owner.strip_prefix(&writer.prefix).map(|tail| tail.split('.').next().unwrap_or_default().to_owned())
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
        let weights = members.iter().flat_map(|&id| reader.graph.term(id).inputs.iter()).filter(|&&id| reader.graph.term(id).op == "weight").count();
        if members.len() < 3 || weights < 2 {
            continue;
        }
        let outputs: Vec<Id> = members.iter().copied().filter(|&id| id == output || reached.iter().any(|&user| !members.contains(&user) && reader.graph.term(user).inputs.contains(&id))).collect();
        let [result] = outputs[..] else { continue };
        let mut parameters: Vec<Id> = Vec::new();
        for &id in &members {
            let term = reader.graph.term(id);
            let borrows = matches!((term.op.as_str(), term.attribute("layer")), ("attend", Some(Number::Int(layer))) if !writer.cache_layers.contains(layer));
            for &source in term.inputs.iter().take(if borrows { 1 } else { usize::MAX }) {
                let op = reader.graph.term(source).op.as_str();
                if !members.contains(&source) && !parameters.contains(&source) && op != "weight" && op != "constant" {
                    parameters.push(source);
                }
            }
        }
        if parameters.is_empty() || parameters.len() > 4 {
            continue;
        }
        let named: Vec<(Id, String)> = parameters.iter().enumerate().map(|(number, &id)| (id, if number == 0 { "x".to_owned() } else { format!("x{}", number + 1) })).collect();
        let attends = members.iter().any(|&id| reader.graph.term(id).op == "attend");
        let function = if attends { "attention".to_owned() } else { function_name(&child) };
        let program = Program::new(writer, &named, &[result]).finish(&[result]);
        let header: Vec<String> = named.iter().map(|(_, name)| name.clone()).collect();
        modules.insert(format!("{function}({})", header.join(", ")), format!("{}{child}", writer.prefix));
        functions.insert(format!("{function}({})", header.join(", ")), program);
        calls.push((result, function, parameters));
    }
    let mut program = Program::new(writer, &[(input, "x".to_owned())], &[output]);
    calls.sort_by_key(|(result, ..)| *result);
    for (result, function, parameters) in calls {
        let arguments: Vec<String> = parameters.iter().map(|&id| program.value(id)).collect();
        program.call(result, format!("{function}({})", arguments.join(", ")));
    }
    Ok(Layer { program: program.finish(&[output]), functions, path: layer.path.clone(), modules })
}

/// Gives the first layer the program of a later one, if they differ by casts of their input alone: rows that layers widen to f32 are wide from the first on.
fn widen_first(layers: &mut [Layer]) -> bool {
    let Some((first, others)) = layers.split_first_mut() else { return false };
    let Some(other) = others.iter().find(|other| other.program != first.program && uncast(&other.program) == uncast(&first.program)) else { return false };
    let same_functions = other.functions.len() == first.functions.len() && other.functions.iter().zip(&first.functions).all(|((one, text), (other, known))| one == other && uncast(text) == uncast(known));
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
            match letter { '(' => depth += 1, ')' => depth -= 1, _ => {} }
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

fn write_model(reader: &Reader<'_>, writer: &Writer<'_>, layers: &[&Forward], wide: bool) -> String {
    let Some(logits) = reader.record.runs[0].logits.and_then(|number| reader.values.get(&number)) else { return "hole_logits".to_owned() };
    let (Some((first, _)), Some((_, last))) = (layers.first().and_then(|layer| stream(reader, layer)), layers.last().and_then(|layer| stream(reader, layer))) else { return "hole_layers".to_owned() };
    let mut before = Program::new(writer, &[], &[first]);
    let embedded = before.value(first);
    let mut lines = before.into_lines();
    lines.push(if wide { format!("x = layers(cast({embedded}, 'f32'))") } else { format!("x = layers({embedded})") });
    let head = reader.graph.term(logits.id);
    let output = if head.op == "cast" { head.inputs[0] } else { logits.id };
    let after = Program::new(writer, &[(last, "x".to_owned())], &[output]);
    lines.push(after.finish(&[output]));
    lines.join("\n")
}

/// The parts of a spec before they are text.
struct Sheet<'s> {
    origins: &'s RefCell<Vec<Origin>>,
    record: &'s Record,
    reader: &'s Reader<'s>,
    names: &'s Names<'s>,
    tables: &'s [(String, String)],
    list: &'s str,
    written: Vec<Layer>,
    model: String,
    transposed: Vec<String>,
    squeezed: Vec<String>,
    states: Vec<(String, String)>,
}

impl Sheet<'_> {
    fn text(&self, name: &str) -> String {
        let mut functions: BTreeMap<String, String> = BTreeMap::new();
        let mut programs: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, layer) in self.written.iter().enumerate() {
            let mut program = layer.program.clone();
            for (header, body) in &layer.functions {
                let (function, parameters) = header.split_once('(').unwrap_or((header, ""));
                let mut chosen = function.to_owned();
                let mut number = 2;
                while functions.get(&format!("{chosen}({parameters}")).is_some_and(|known| known != body) || (chosen != function && functions.keys().any(|known| known.split('(').next() == Some(chosen.as_str())) && !functions.contains_key(&format!("{chosen}({parameters}"))) {
                    chosen = format!("{function}_{number}");
                    number += 1;
                }
                if chosen != function {
                    program = program.replace(&format!("{function}("), &format!("{chosen}("));
                }
                if let Some(module) = layer.modules.get(header) {
                    self.note_origin(&chosen, module);
                }
                functions.insert(format!("{chosen}({parameters}"), body.clone());
            }
            match programs.iter_mut().find(|(known, _)| *known == program) {
                Some((_, layers)) => layers.push(index),
                None => programs.push((program, vec![index])),
            }
        }
        let kinds = self.kinds(&programs);
        for (label, program) in &kinds.programs {
            let layers = programs.iter().filter(|(known, _)| known == program).flat_map(|(_, layers)| layers);
            layers.for_each(|&index| self.note_origin(&format!("layers.{}", label.trim_matches('"')), &self.written[index].path));
        }
        let ropes = self.ropes();
        let states = self.states();
        let head = self.model.clone();
        let mut text = format!("spec: 1\nname: {name}\nmatches: [{}]\n", self.record.class);
        let mut body = String::new();
        if !functions.is_empty() {
            body.push_str("\nfunctions:\n");
            for (header, program) in &functions {
                let _ = write!(body, "  {header}: |\n{}\n", indented(program, 4));
            }
        }
        let _ = write!(body, "\nlayers:\n  prefix: {}.{{i}}\n", crate::write::text_model(&format!("{}.", self.list)).trim_end_matches('.'));
        if let Some(kind) = &kinds.expression {
            let _ = writeln!(body, "  kind: {kind}");
        }
        for (label, program) in &kinds.programs {
            let _ = write!(body, "  {label}: |\n{}\n", indented(program, 4));
        }
        let _ = write!(body, "\nmodel: |\n{}\n", indented(&head, 2));
        body.push_str(&self.weight_rules());
        body.push_str(&self.kept());
        let mut dims = self.names.dims();
        let layers = dims.iter().find(|(dim, _)| dim == "layers").map_or("num_hidden_layers", |(_, source)| source.as_str()).to_owned();
        let _ = layers;
        dims.sort_by_key(|(dim, _)| match dim.as_str() { "hidden" => 0, "layers" => 1, "vocab" => 2, _ => 3 });
        text.push_str("\ndims:\n");
        for (dim, source) in dims {
            let _ = writeln!(text, "  {dim}: {source}");
        }
        for (dim, expression) in &kinds.dims {
            let _ = writeln!(text, "  {dim}: {expression}");
        }
        text.push_str(&ropes);
        text.push_str(&states);
        let (mut assumptions, ignored) = self.other_keys(&format!("{text}{body}"));
        if body.contains("attend_to(") {
            assumptions.push((format!("there are {} layers", self.written.len()), format!("layers == {}", self.written.len())));
        }
        let kind = kinds.expression.clone().unwrap_or_default();
        if kind.contains(" if ") {
            let inner = self.record.config.get("text_config").unwrap_or(&self.record.config);
            for (key, value) in inner.as_object().into_iter().flatten() {
                let mut words: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
                words.sort_unstable();
                words.dedup();
                let name = self.names.name_if_used(key);
                if let (Some(name), false) = (name, words.is_empty()) {
                    let list: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
                    assumptions.push((format!("the kinds of {key} are known"), format!("all([k in [{}] for k in {name}])", list.join(", "))));
                }
            }
        }
        if !assumptions.is_empty() {
            let lines: Vec<String> = assumptions.iter().map(|(words, test)| format!("  {words}: \"{test}\"")).collect();
            let at = text.find("\ndims:").unwrap_or(text.len());
            text.insert_str(at, &format!("assumes:\n{}\n", lines.join("\n")));
        }
        let unread = self.unread_tensors();
        if !ignored.is_empty() || !unread.is_empty() {
            body.push_str("\nignore:\n");
            if !unread.is_empty() { let _ = writeln!(body, "  weights: [{}]", unread.join(", ")); }
            if !ignored.is_empty() { let _ = writeln!(body, "  config: [{}]", ignored.join(", ")); }
        }
        text + &body
    }

    /// Notes that a function or a layer program describes a module.
    fn note_origin(&self, name: &str, module: &str) {
        let class = self.record.modules.get(module).map_or_else(String::new, |facts| facts.class.clone());
        let mut origins = self.origins.borrow_mut();
        match origins.iter_mut().find(|origin| origin.name == name && origin.class == class) {
            Some(origin) => origin.modules.push(module.to_owned()),
            None => origins.push(Origin { name: name.to_owned(), modules: vec![module.to_owned()], class }),
        }
    }

    /// Tensors of the checkpoint that the class has no weight for.
    fn unread_tensors(&self) -> Vec<String> {
        let sources: Vec<&String> = self.record.sources.values().flatten().map(|source| &source.disk).collect();
        let mut unread: Vec<String> = self.record.disk.keys().filter(|name| !self.record.weights.contains_key(*name) && !self.record.buffers.contains_key(*name) && !sources.contains(name))
            .map(|name| format!("\"{}\"", starred(&crate::write::text_model(name)))).collect();
        unread.sort();
        unread.dedup();
        unread
    }

    /// Keys that no part of the spec reads: what the class decides by them is assumed, and keys that it does not read are ignored.
    fn other_keys(&self, text: &str) -> (Vec<(String, String)>, Vec<String>) {
        let mut assumptions = Vec::new();
        let mut ignored = Vec::new();
        let mut decided: Vec<String> = Vec::new();
        for decision in &self.record.decisions {
            Number::parse(&decision.test).keys(&mut decided);
        }
        let inner = self.record.config.get("text_config").unwrap_or(&self.record.config);
        let aliases: Vec<&String> = self.record.attribute_map.values().collect();
        for (key, value) in inner.as_object().into_iter().flatten() {
            let read = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == key);
            let structural = ["architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "use_cache", "_name_or_path"].contains(&key.as_str()) || key.ends_with("token_id");
            if read || structural || self.record.attribute_map.contains_key(key) && !aliases.contains(&key) {
                continue;
            }
            let harmless = ["initializer_range", "output_attentions", "output_hidden_states", "output_router_logits", "router_aux_loss_coef", "is_encoder_decoder", "chunk_size_feed_forward", "problem_type", "max_position_embeddings", "pretraining_tp"].contains(&key.as_str())
                || key.contains("dropout") || key.ends_with("_pdrop") || key.contains("aux_loss");
            let branches = (!harmless && self.record.reads.contains(key)) || decided.contains(key) || self.record.attribute_map.iter().any(|(alias, saved)| saved == key && decided.contains(alias));
            match (branches, crate::names::literal(value)) {
                (true, Some(written)) if !value.is_array() => {
                    let default = number::look_up(&self.record.defaults, key).and_then(crate::names::literal).unwrap_or_else(|| "null".to_owned());
                    let test = if value.is_null() { format!("has('{key}') and config('{key}', null) == null") } else { format!("config('{key}', {default}) == {written}") };
                    assumptions.push((format!("{key} is {written}").replace(['\'', ':'], ""), test));
                }
                _ => ignored.push(key.clone()),
            }
        }
        (assumptions, ignored)
    }

    fn states(&self) -> String {
        let lines: Vec<String> = self.states.iter().map(|(name, declaration)| format!("  {name}: {{ {declaration} }}\n")).collect();
        if lines.is_empty() { String::new() } else { format!("\nstates:\n{}", lines.concat()) }
    }

    fn ropes(&self) -> String {
        let mut text = String::new();
        for (table, name) in self.tables {
            let rope = self.reader.graph.terms.iter().filter(|term| term.op == "rope" && term.word("table") == Some(table)).max_by_key(|term| term.width().size);
            let Some(rope) = rope else { continue };
            if text.is_empty() { text.push_str("\nrope:\n"); }
            let module = table.split(':').next().unwrap_or_default();
            let layer_type = table.split_once(':').map(|(_, word)| word.to_owned());
            let _ = writeln!(text, "  {name}:");
            let width = rope.width();
            let dim = self.names.written(&width.number);
            if dim != "head_dim" { let _ = writeln!(text, "    dim: {dim}"); }
            let parameters = match &layer_type {
                Some(word) => format!("rope_parameters.{word}"),
                None => "rope_parameters".to_owned(),
            };
            let class = self.record.modules.get(module).map_or("", |facts| facts.class.as_str());
            let rotated = self.record.built.iter().filter(|call| call.call == "arange" && call.inside.contains(class) && !class.is_empty())
                .find_map(|call| call.args.get(1).map(Number::parse));
            let rotated = rotated.or_else(|| rope.attribute("rotated").cloned());
            if let Some(partial) = rotated.and_then(|number| partial_share(&number, &width.number, &self.record.config)) {
                let _ = writeln!(text, "    partial: {}", self.names.written(&partial));
            }
            let base = self.record.built.iter().filter(|call| ["pow", "__rpow__", "__pow__"].contains(&call.call.as_str()) && call.inside.contains(class) && !class.is_empty())
                .flat_map(|call| call.args.iter().map(Number::parse)).find(|number| matches!(number, Number::Apply(..)));
            if let Some(base) = base {
                let _ = writeln!(text, "    theta: \"= {}\"", self.names.written(&base));
                let _ = writeln!(text, "    parameters: = null");
                continue;
            }
            let theta = number::look_up(&self.record.defaults, "rope_parameters.rope_theta").and_then(crate::names::literal).unwrap_or_else(|| "10000.0".to_owned());
            let _ = writeln!(text, "    theta: [{parameters}.rope_theta, rope_theta, = {theta}]");
            let _ = writeln!(text, "    parameters: [{parameters}{}]", if layer_type.is_some() { "" } else { ", rope_scaling" });
        }
        text
    }

    /// Rules for weights that the checkpoint has under other names, in parts or transposed.
    fn weight_rules(&self) -> String {
        let mut rules: Vec<String> = self.transposed.iter().map(|path| format!("  - {{ disk: \"{0}\", weight: \"{0}\", do: [transpose] }}", general(path))).collect();
        rules.extend(self.squeezed.iter().map(|path| {
            let disk = self.record.sources.get(path).and_then(|sources| sources.first()).map_or(path, |source| &source.disk);
            format!("  - {{ disk: \"{}\", weight: \"{}\", do: squeeze(0) }}", general(&crate::write::text_model(disk)), general(&crate::write::text_model(path)))
        }));
        for (weight, sources) in &self.record.sources {
            if self.squeezed.contains(weight) {
                continue;
            }
            for source in sources {
                if let Some(rule) = self.source_rule(weight, source) {
                    rules.push(rule);
                }
            }
        }
        for name in self.record.weights.keys().filter(|name| self.is_stack(name)) {
            let turned = self.record.sources.get(name).is_some_and(|sources| sources.iter().any(|source| source.part == "whole" && source.turned));
            let whole = self.record.sources.get(name).and_then(|sources| sources.iter().find(|source| source.part == "whole"));
            if let Some(disk) = whole.map(|source| &source.disk).or_else(|| self.record.disk.get_key_value(name).map(|(disk, _)| disk)) {
                rules.extend(self.stack_rules(name, disk, turned));
            }
        }
        let mut unique: Vec<String> = Vec::new();
        for rule in rules {
            if !unique.contains(&rule) { unique.push(rule); }
        }
        if unique.is_empty() { String::new() } else { format!("\nweights:\n{}\n", unique.join("\n")) }
    }

    /// The rule for a matrix of a stack of experts, or for a whole tensor of another name.
    fn source_rule(&self, weight: &str, source: &crate::record::Source) -> Option<String> {
        let (module, tensor) = weight.rsplit_once('.')?;
        if source.part == "whole" && self.is_stack(weight) {
            return None;
        }
        let gated = matches!(source.part.as_str(), "first" | "second" | "even" | "odd");
        let target = match (source.part.as_str(), tensor) {
            ("whole", _) => general(&crate::write::text_model(weight)),
            ("first" | "even", "gate_up_proj") => format!("{}.{{e}}.gate_proj.weight", general(module)),
            ("second" | "odd", "gate_up_proj") => format!("{}.{{e}}.up_proj.weight", general(module)),
            ("matrix", name) => format!("{}.{{e}}.{name}.weight", general(module)),
            _ => return None,
        };
        let disk = expert_general(&crate::write::text_model(&source.disk), source.part != "whole");
        if gated && source.turned || disk == target { return None; }
        let step = if source.turned { ", do: [transpose]" } else { "" };
        Some(format!("  - {{ disk: \"{disk}\", weight: \"{target}\"{step} }}"))
    }

    /// Is true for a weight that holds the matrices of all experts.
    fn is_stack(&self, name: &str) -> bool {
        let Some((module, _)) = name.rsplit_once('.') else { return false };
        let ranks = if module_tail(name).ends_with("_bias") { 2 } else { 3 };
        self.record.weights.get(name).is_some_and(|facts| facts.shape.len() == ranks) && self.reader.graph.terms.iter().any(|term| term.op == "experts" && term.word("path") == Some(module))
    }

    /// The rule for a weight that the checkpoint has in pieces.
    fn joined_rule(&self, weight: &str) -> Option<String> {
        let pieces: Vec<Vec<String>> = self.record.sources.get(weight)?.iter().map(|source| general(&crate::write::text_model(&source.disk)).split('.').map(str::to_owned).collect()).collect();
        let place = (0..pieces[0].len()).find(|&place| pieces.iter().any(|piece| piece.get(place) != pieces[0].get(place)))?;
        let words: Vec<&str> = pieces.iter().filter_map(|piece| piece.get(place).map(String::as_str)).collect();
        let mut path = pieces[0].clone();
        path[place] = format!("{{{}}}", words.join("|"));
        Some(format!("  - {{ disk: \"{}\", weight: \"{}\", do: concat(0) }}", path.join("."), general(&crate::write::text_model(weight))))
    }

    /// The rule for weights that lie side by side in a tensor of the checkpoint.
    fn fused_rule(&self, source: &crate::record::Source) -> Option<String> {
        let mut parts: Vec<(usize, usize, String)> = self.record.sources.iter().flat_map(|(name, sources)| sources.iter().map(move |other| (name, other)))
            .filter(|(_, other)| other.part == "rows" && other.disk == source.disk)
            .map(|(name, other)| (other.from, other.to, general(&crate::write::text_model(name)))).collect();
        parts.sort();
        let complete = parts.first()?.0 == 0 && parts.windows(2).all(|pair| pair[0].1 == pair[1].0);
        if !complete { return None; }
        let pieces: Vec<Vec<&str>> = parts.iter().map(|(_, _, path)| path.split('.').collect()).collect();
        let place = (0..pieces[0].len()).find(|&place| pieces.iter().any(|piece| piece.get(place) != pieces[0].get(place)))?;
        let words: Vec<&str> = pieces.iter().filter_map(|piece| piece.get(place).copied()).collect();
        let mut path: Vec<String> = pieces[0].iter().map(|part| (*part).to_owned()).collect();
        path[place] = format!("{{{}}}", words.join("|"));
        let sizes: Vec<String> = parts.iter().map(|(from, to, path)| self.rows_of(path, to - from)).collect();
        let even = sizes.iter().all(|size| *size == sizes[0]);
        let step = if even { format!("split(0, {})", sizes.len()) } else { format!("split(0, [{}])", sizes.join(", ")) };
        Some(format!("  - {{ disk: \"{}\", weight: \"{}\", do: \"{step}\" }}", general(&crate::write::text_model(&source.disk)), path.join(".")))
    }

    /// The expression of a weight's first axis.
    fn rows_of(&self, path: &str, size: usize) -> String {
        let term = self.reader.graph.terms.iter().find(|term| term.op == "weight" && term.word("path").is_some_and(|known| general(&crate::write::text_model(known)) == path));
        term.and_then(|term| term.shape.first()).map_or_else(|| size.to_string(), |dim| self.names.written(&dim.number))
    }

    /// Rules for experts that lie in one tensor on disk.
    fn stack_rules(&self, name: &str, disk: &str, turned_on_disk: bool) -> Vec<String> {
        let Some((module, tensor)) = name.rsplit_once('.') else { return Vec::new() };
        let disk = general(&crate::write::text_model(disk));
        let base = general(&crate::write::text_model(module));
        let term = self.reader.graph.terms.iter().find(|term| term.op == "experts" && term.word("path") == Some(module));
        let is = |name: &str| term.is_some_and(|term| term.attribute(name).is_some());
        let turn = if is("turned") != turned_on_disk { "transpose, " } else { "" };
        let parts = if is("interleaved") { "\"unflatten(0, [0, 2])\", \"unstack(1)\"" } else { "\"split(0, 2)\"" };
        match tensor {
            "gate_up_proj" => vec![format!("  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{{gate_proj|up_proj}}.weight\", do: [\"unstack(0)\", {turn}{parts}] }}")],
            "down_proj" | "up_proj" if turn.is_empty() => vec![format!("  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{tensor}.weight\", do: \"unstack(0)\" }}")],
            "down_proj" | "up_proj" => vec![format!("  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{tensor}.weight\", do: [\"unstack(0)\", transpose] }}")],
            "gate_up_proj_bias" => vec![format!("  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.{{gate_proj|up_proj}}.bias\", do: [\"unstack(0)\", {parts}] }}")],
            "down_proj_bias" => vec![format!("  - {{ disk: \"{disk}\", weight: \"{base}.{{e}}.down_proj.bias\", do: \"unstack(0)\" }}")],
            _ => Vec::new(),
        }
    }

    /// Weights that stay f32 in a run of 16 bits.
    fn kept(&self) -> String {
        let mut paths: Vec<String> = self.record.weights.iter().filter(|(_, facts)| facts.dtype == "float32").map(|(path, _)| starred(&crate::write::text_model(path))).collect();
        paths.dedup();
        let half: Vec<String> = self.record.kept_in_half.iter().map(|path| starred(&crate::write::text_model(path))).collect();
        let mut text = String::new();
        for (key, mut paths) in [("f32", paths.clone()), ("f32_in_f16", half.into_iter().filter(|path| !paths.contains(path)).collect())] {
            paths.sort();
            paths.dedup();
            let quoted: Vec<String> = paths.iter().map(|path| format!("\"{path}\"")).collect();
            if !quoted.is_empty() {
                if text.is_empty() { text.push_str("\nkept:\n"); }
                let _ = writeln!(text, "  {key}: [{}]", quoted.join(", "));
            }
        }
        paths.clear();
        text
    }

    fn kinds(&self, programs: &[(String, Vec<usize>)]) -> Kinds {
        if let [(program, _)] = programs {
            return Kinds { expression: None, dims: Vec::new(), programs: vec![("\"*\"".to_owned(), program.clone())] };
        }
        let count = self.written.len();
        let program_of = |index: usize| programs.iter().position(|(_, layers)| layers.contains(&index)).unwrap_or(0);
        let inner = self.record.config.get("text_config").unwrap_or(&self.record.config);
        if let Some(object) = inner.as_object() {
            for (key, value) in object {
                let Some(words) = value.as_array().filter(|items| items.len() == count) else { continue };
                let words: Option<Vec<&str>> = words.iter().map(Json::as_str).collect();
                let Some(words) = words else { continue };
                let consistent = (0..count).all(|one| (0..count).all(|other| words[one] != words[other] || program_of(one) == program_of(other)));
                if !consistent { continue; }
                let labelled = programs.iter().map(|(program, layers)| {
                    let mut labels: Vec<&str> = layers.iter().map(|&index| words[index]).collect();
                    labels.sort_unstable();
                    labels.dedup();
                    (labels.join("|"), program.clone())
                }).collect();
                let name = self.names.name(key);
                return Kinds { expression: Some(format!("{name}[i]")), dims: Vec::new(), programs: labelled };
            }
        }
        let labels: Vec<String> = (0..programs.len()).map(|number| format!("kind_{}", number + 1)).collect();
        let expression = condition(self.record, self.names, programs, count, &labels);
        let labelled = programs.iter().zip(&labels).map(|((program, _), label)| (label.clone(), program.clone())).collect();
        Kinds { expression: Some(format!("\"{expression}\"")), dims: Vec::new(), programs: labelled }
    }
}

struct Kinds {
    expression: Option<String>,
    dims: Vec<(String, String)>,
    programs: Vec<(String, String)>,
}

/// A test that depends on the number of the layer, and the layers where it holds.
struct Atom {
    test: Number,
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
    let mut tests: Vec<Number> = Vec::new();
    for decision in record.decisions.iter().filter(|decision| decision.at.starts_with("modeling_") && !decision.at.starts_with("modeling_rope_utils")) {
        let test = Number::parse(&decision.test);
        let mut keys = Vec::new();
        test.keys(&mut keys);
        if keys.iter().any(|key| key.starts_with("vision_config")) {
            continue;
        }
        let mut literals = Vec::new();
        test.literals(&mut literals);
        for literal in literals.into_iter().filter(|literal| (0..=count as i64).contains(literal)) {
            for offset in [0, 1] {
                let layer = Number::apply("+", vec![Number::Config("i".to_owned()), Number::Int(offset)]);
                let template = test.replaced(literal, &layer);
                let seen = (0..count as i64).filter(|index| {
                    let instance = template.at_layer(*index);
                    record.decisions.iter().any(|other| Number::parse(&other.test) == instance)
                }).count();
                if seen > 1 || count == 1 {
                    tests.push(template);
                }
            }
        }
    }
    for (key, value) in record.config.get("text_config").unwrap_or(&record.config).as_object().into_iter().flatten() {
        let Some(items) = value.as_array().filter(|items| items.len() == count) else { continue };
        let item = Number::Apply("item".to_owned(), vec![Number::Config(key.clone()), Number::Config("i".to_owned())]);
        let mut words: Vec<&str> = items.iter().filter_map(Json::as_str).collect();
        words.sort_unstable();
        words.dedup();
        tests.extend(words.into_iter().map(|word| Number::Apply("==".to_owned(), vec![item.clone(), Number::Word(word.to_owned())])));
    }
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
                    result.push(Atom { test: test.clone(), negated, holds });
                }
            }
        }
    }
    result
}

/// An expression for the label of a layer's program.
fn condition(record: &Record, names: &Names<'_>, programs: &[(String, Vec<usize>)], count: usize, labels: &[String]) -> String {
    let atoms = atoms(record, count);
    let mut remaining: Vec<usize> = (0..count).collect();
    let mut text = String::new();
    for (number, (_, layers)) in programs.iter().enumerate().take(programs.len() - 1) {
        let fits = |holds: &dyn Fn(usize) -> bool| remaining.iter().all(|&index| holds(index) == layers.contains(&index));
        let single = atoms.iter().find(|atom| fits(&|index| atom.holds[index])).map(|atom| atom.text(names));
        let pair = || {
            for one in &atoms {
                for other in &atoms {
                    if fits(&|index| one.holds[index] && other.holds[index]) { return Some(format!("{} and {}", one.text(names), other.text(names))); }
                }
            }
            None
        };
        let Some(test) = single.or_else(pair) else {
            let list: Vec<String> = (0..count).map(|index| programs.iter().position(|(_, layers)| layers.contains(&index)).map_or_else(String::new, |number| format!("'{}'", labels[number]))).collect();
            return format!("[{}][i]", list.join(", "));
        };
        text.push_str(&format!("'{}' if {test} else ", labels[number]));
        remaining.retain(|index| !layers.contains(index));
    }
    format!("{text}'{}'", labels[labels.len() - 1])
}

/// The share of a head that a table rotates, if it is not the whole.
fn partial_share(rotated: &Number, width: &Number, config: &Json) -> Option<Number> {
    if rotated == width { return None; }
    match rotated {
        Number::Apply(operator, operands) if operator == "*" && operands.len() == 2 => operands.iter().find(|operand| operand.evaluate(config).is_some_and(|share| share <= 1.0)).cloned(),
        Number::Apply(operator, operands) if operator == "int" => partial_share(&operands[0], width, config),
        Number::Config(_) if rotated.evaluate(config) <= width.evaluate(config) => Some(Number::apply("/", vec![rotated.clone(), width.clone()])),
        _ => None,
    }
}

fn module_tail(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// A path of the checkpoint, whose last number is an expert's if it is of one.
fn expert_general(path: &str, expert: bool) -> String {
    let numbers = path.split('.').filter(|part| part.chars().all(|letter| letter.is_ascii_digit())).count();
    let mut seen = 0;
    path.split('.').map(|part| {
        if !part.chars().all(|letter| letter.is_ascii_digit()) { return part.to_owned(); }
        seen += 1;
        if expert && seen == numbers { "{e}".to_owned() } else { "{i}".to_owned() }
    }).collect::<Vec<_>>().join(".")
}

/// A path with a star for each number.
fn starred(path: &str) -> String {
    path.split('.').map(|part| if part.chars().all(|letter| letter.is_ascii_digit()) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

/// A path with a hole for each number.
fn general(path: &str) -> String {
    path.split('.').map(|part| if part.chars().all(|letter| letter.is_ascii_digit()) { "{i}" } else { part }).collect::<Vec<_>>().join(".")
}

fn indented(program: &str, by: usize) -> String {
    program.lines().map(|line| format!("{}{line}", " ".repeat(by))).collect::<Vec<_>>().join("\n")
}
