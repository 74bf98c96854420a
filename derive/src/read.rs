//! Reads a record: follows the axes of each tensor and makes a term of each call.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::graph::{Dim, Graph, Id, Kind, Term};
use crate::layout::{Axis, Sizes};
use crate::number::Number;
use crate::operand::Operand;
use crate::record::{BuiltCall, Event, Record};
use crate::wholes;

/// A recorded tensor: its term, and the meaning of its axes.
#[derive(Debug, Clone)]
pub struct Value {
    /// The term of its rows.
    pub id: Id,
    /// Its axes in torch's order.
    pub axes: Vec<Axis>,
}

/// A forward of a module: what it got and what it gave.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    /// Path of the module.
    pub path: String,
    /// Terms of its tensors, in order.
    pub inputs: Vec<Id>,
    /// Terms of its results.
    pub outputs: Vec<Id>,
    /// Number of terms when it began.
    pub from: usize,
}

/// Reader of one run.
pub struct Reader<'r> {
    /// The record.
    pub record: &'r Record,
    /// Terms so far.
    pub graph: Graph,
    /// Values by their number in the record.
    pub values: BTreeMap<usize, Value>,
    /// Sizes of axes outside of rows.
    pub sizes: Sizes,
    /// Rotary modules in order of their use, by path and layer type.
    pub tables: Vec<String>,
    /// Modules whose forward runs.
    pub stack: Vec<String>,
    /// Forwards of modules, in order of their ends.
    pub forwards: Vec<Forward>,
    open: Vec<Forward>,
    /// Parts of tensors that a class fills one after the other.
    pub(crate) parts: BTreeMap<usize, Vec<(i64, i64, Value)>>,
    pub(crate) skipping: Option<wholes::Whole>,
}

impl<'r> Reader<'r> {
    /// Reads the prefill of a record.
    pub fn read(record: &'r Record) -> Self {
        let sizes = Sizes { batch: 2, tokens: record.tokens, keys: record.tokens };
        let mut reader = Self {
            record,
            graph: Graph::default(),
            values: BTreeMap::new(),
            sizes,
            tables: Vec::new(),
            stack: Vec::new(),
            skipping: None,
            forwards: Vec::new(),
            open: Vec::new(),
            parts: BTreeMap::new(),
        };
        if let Some(ids) = record.runs[0].ids {
            let term = reader.graph.step("tokens", &[], Vec::new(), Kind::Int);
            let id = reader.graph.add(term);
            reader.values.insert(ids, Value { id, axes: vec![Axis::Batch, Axis::Tokens] });
        }
        for event in &record.runs[0].events {
            reader.event(event);
        }
        reader
    }

    fn event(&mut self, event: &Event) {
        if let Some(whole) = &mut self.skipping {
            if event.leave.as_deref() == Some(whole.path.as_str()) {
                let whole = self.skipping.take().expect("checked above");
                wholes::leave(self, &whole, event);
                self.end_forward(event);
                self.stack.pop();
                self.graph.owner = self.stack.last().cloned().unwrap_or_default();
            } else {
                whole.inside(event);
            }
            return;
        }
        if let Some(path) = &event.enter {
            if event.module.is_some() {
                self.begin_forward(path, event);
            }
            if let Some(whole) = wholes::enter(self, event) {
                self.skipping = Some(whole);
            }
            let owner =
                if event.module.is_some() { path.clone() } else { self.graph.owner.clone() };
            self.stack.push(owner.clone());
            self.graph.owner = owner;
        } else if event.leave.is_some() {
            self.end_forward(event);
            self.stack.pop();
            self.graph.owner = self.stack.last().cloned().unwrap_or_default();
        } else if let Some(call) = &event.call {
            self.graph.at.clone_from(&event.at);
            crate::calls::call(self, call, event);
        }
    }

    fn begin_forward(&mut self, path: &str, event: &Event) {
        let mut inputs = Vec::new();
        for argument in event.args.iter().chain(event.named.values()) {
            for number in Operand::parse(argument).values() {
                inputs.push(self.value(number).id);
            }
        }
        self.open.push(Forward {
            path: path.to_owned(),
            inputs,
            outputs: Vec::new(),
            from: self.graph.terms.len(),
        });
    }

    fn end_forward(&mut self, event: &Event) {
        let path = event.leave.clone().unwrap_or_default();
        if self.open.last().is_none_or(|forward| forward.path != path) {
            return;
        }
        let Some(mut forward) = self.open.pop() else { return };
        for number in Operand::parse(&event.out).values() {
            forward.outputs.push(self.value(number).id);
        }
        self.forwards.push(forward);
    }

    /// Notes that a call has no term, and gives its results terms that name it.
    pub fn hole(&mut self, event: &Event, reason: &str) {
        let call = event.call.clone().unwrap_or_default();
        let mut inputs = Vec::new();
        for argument in event.args.iter().chain(event.named.values()) {
            self.collect(&Operand::parse(argument), &mut inputs);
        }
        for (number, out) in Operand::parse(&event.out).values().into_iter().enumerate() {
            let (row, axes) = self.guess(out);
            let mut term = self.graph.step(&format!("hole_{call}"), &inputs, row, self.kind(out));
            term.set("result", Number::Int(number as i64));
            term.set("at", Number::Word(event.at.clone()));
            term.set("reason", Number::Word(format!("`{call}`: {reason}")));
            let id = self.graph.add(term);
            self.values.insert(out, Value { id, axes });
        }
    }

    fn collect(&mut self, operand: &Operand, inputs: &mut Vec<Id>) {
        match operand {
            Operand::Value(number) => {
                let value = self.value(*number);
                inputs.push(value.id);
            }
            Operand::List(items) => items.iter().for_each(|item| self.collect(item, inputs)),
            _ => {}
        }
    }

    /// Axes of a tensor that no term explains: sequences and tokens first.
    pub fn guess(&self, number: usize) -> (Vec<Dim>, Vec<Axis>) {
        let shape = &self.record.values[number].shape;
        let rows = self.sizes.batch * self.sizes.tokens;
        let outer: Vec<Axis> = if shape.len() >= 2
            && shape[0] == self.sizes.batch
            && shape[1] == self.sizes.tokens
        {
            vec![Axis::Batch, Axis::Tokens]
        } else if shape.len() >= 3 && shape[0] == 1 && shape[1] == self.sizes.tokens {
            vec![Axis::One, Axis::Tokens]
        } else if shape.first() == Some(&rows) {
            vec![Axis::Merged(vec![Axis::Batch, Axis::Tokens])]
        } else if shape.len() >= 3 && shape[0] == self.sizes.batch && shape[2] == self.sizes.tokens
        {
            let mut axes = vec![Axis::Batch, Axis::Row(0), Axis::Tokens];
            axes.extend((3..shape.len()).map(|place| Axis::Row(place - 2)));
            let row = std::iter::once(shape[1])
                .chain(shape[3..].iter().copied())
                .map(Dim::plain)
                .collect();
            return (row, axes);
        } else {
            Vec::new()
        };
        let row: Vec<Dim> = shape[outer.len()..].iter().map(|&size| Dim::plain(size)).collect();
        let axes = outer.into_iter().chain((0..row.len()).map(Axis::Row)).collect();
        (row, axes)
    }

    /// Returns the kind of a recorded tensor.
    pub fn kind(&self, number: usize) -> Kind {
        Kind::of(&self.record.values[number].dtype)
    }

    /// Returns the value of a recorded tensor: a result, a weight or a constant.
    pub fn value(&mut self, number: usize) -> Value {
        if let Some(value) = self.values.get(&number) {
            return value.clone();
        }
        let facts = &self.record.values[number];
        let kind = self.kind(number);
        if facts.weight.as_ref().is_some_and(|path| path.ends_with("position_ids"))
            && (1..=2).contains(&facts.shape.len())
        {
            let batch = vec![Axis::One; facts.shape.len() - 1];
            let term = self.graph.step("positions", &[], Vec::new(), Kind::Int);
            let id = self.graph.add(term);
            let value = Value { id, axes: [batch, vec![Axis::Tokens]].concat() };
            self.values.insert(number, value.clone());
            return value;
        }
        let mut row: Vec<Dim> = facts.shape.iter().map(|&size| Dim::plain(size)).collect();
        let mut term = self.graph.step("constant", &[], Vec::new(), kind);
        if let Some(path) = &facts.weight {
            "weight".clone_into(&mut term.op);
            term.set("path", Number::Word(path.clone()));
            row = self.weight_dims(path, &facts.shape);
            if let Some(number) = self.buffer_number(path) {
                "constant".clone_into(&mut term.op);
                term.attributes.clear();
                term.set("number", number);
                term.set("rounded", Number::Bool(true));
            }
        } else {
            match facts.constant.as_deref() {
                Some([single]) => term.set("number", Number::parse(single)),
                Some(many) => term.set(
                    "numbers",
                    Number::Apply("list".to_owned(), many.iter().map(Number::parse).collect()),
                ),
                None => term.set("record", Number::Int(number as i64)),
            }
        }
        let single = row.iter().all(|dim| dim.size == 1) && term.op == "constant";
        let ones = row.iter().take_while(|dim| dim.size == 1).count();
        if term.op == "weight"
            && ones > 0
            && ones < row.len()
            && !self.record.weights.contains_key(term.word("path").unwrap_or_default())
        {
            row.drain(..ones);
            let axes =
                std::iter::repeat_n(Axis::One, ones).chain((0..row.len()).map(Axis::Row)).collect();
            term.shape = row;
            let id = self.graph.add(term);
            let value = Value { id, axes };
            self.values.insert(number, value.clone());
            return value;
        }
        let axes = if single {
            row.iter().map(|_| Axis::One).collect()
        } else {
            (0..row.len()).map(Axis::Row).collect()
        };
        term.shape = if single { Vec::new() } else { row };
        let id = self.graph.add(term);
        let value = Value { id, axes };
        self.values.insert(number, value.clone());
        value
    }

    /// The number in a buffer of one element that the checkpoint lacks, as an expression if the module has one.
    fn buffer_number(&self, path: &str) -> Option<Number> {
        let facts = self.record.buffers.get(path)?;
        if self.record.disk.contains_key(path) {
            return None;
        }
        let [single] = facts.numbers.as_deref()? else { return None };
        let value = single.as_f64()?;
        let module = path.rsplit_once('.').map_or("", |(module, _)| module);
        let attributes = self.record.modules.get(module).map(|facts| &facts.values)?;
        let close = |number: &Number| {
            number
                .evaluate(&self.record.config)
                .is_some_and(|other| (other - value).abs() <= value.abs() * 0.005)
        };
        attributes
            .values()
            .map(Number::parse)
            .find(|number| number.is_symbolic() && close(number))
            .or(Some(Number::Real(value)))
    }

    /// Sizes of a weight as expressions: those its module was built with, or those of a call that made such a tensor.
    fn weight_dims(&self, path: &str, shape: &[usize]) -> Vec<Dim> {
        let (module, name) = path.rsplit_once('.').unwrap_or(("", path));
        let facts = self.record.modules.get(module);
        let number = |key: &str| facts.and_then(|facts| facts.values.get(key)).map(Number::parse);
        let keys: &[&str] = match (facts.map(|facts| facts.class.as_str()), name) {
            (Some("Conv1d"), "weight" | "bias") => &["out_channels"],
            (_, "weight") if number("out_features").is_some() => &["out_features", "in_features"],
            (_, "bias") if number("out_features").is_some() => &["out_features"],
            (_, "weight") if number("num_embeddings").is_some() => {
                &["num_embeddings", "embedding_dim"]
            }
            _ => &[],
        };
        let mut numbers: Vec<Option<Number>> = keys.iter().map(|key| number(key)).collect();
        if numbers.iter().all(Option::is_none) {
            numbers = self.built_dims(module, shape);
        }
        shape
            .iter()
            .enumerate()
            .map(|(axis, &size)| {
                let known = numbers
                    .get(axis)
                    .cloned()
                    .flatten()
                    .filter(|number| number.evaluate(&self.record.config) == Some(size as f64));
                Dim { size, number: known.unwrap_or(Number::Int(size as i64)) }
            })
            .collect()
    }

    /// Sizes with which the class of a module made a tensor of this shape.
    fn built_dims(&self, module: &str, shape: &[usize]) -> Vec<Option<Number>> {
        let class = self.record.modules.get(module).map_or("", |facts| facts.class.as_str());
        if class.is_empty() {
            return Vec::new();
        }
        let is_class = |path: &&String| {
            self.record.modules.get(*path).is_some_and(|facts| facts.class == class)
        };
        let equals: Vec<&String> = self.record.module_order.iter().filter(is_class).collect();
        let calls: Vec<&BuiltCall> =
            self.record.built.iter().filter(|call| call.inside.starts_with(class)).collect();
        // Modules of a class are built one after the other, each by as many calls.
        let share = equals
            .iter()
            .position(|path| *path == module)
            .filter(|_| calls.len().is_multiple_of(equals.len()));
        let count = calls.len() / equals.len().max(1);
        let calls_of_module =
            share.map_or(&calls[..], |place| &calls[place * count..(place + 1) * count]);
        calls_of_module
            .iter()
            .chain(&calls)
            .find_map(|call| self.sizes_of(call, shape))
            .unwrap_or_default()
    }

    /// Sizes that a call gives a tensor of this shape.
    fn sizes_of(&self, call: &BuiltCall, shape: &[usize]) -> Option<Vec<Option<Number>>> {
        let sizes = match call.args.first().map(Number::parse) {
            Some(Number::Apply(list, items)) if list == "list" => items,
            _ => call.args.iter().map(Number::parse).collect(),
        };
        let value = |number: &Number| number.evaluate(&self.record.config);
        let fits = sizes.len() == shape.len()
            && sizes.iter().zip(shape).all(|(number, &size)| value(number) == Some(size as f64));
        fits.then(|| sizes.into_iter().map(Some).collect())
    }

    /// Binds a recorded tensor to a term with these axes.
    pub fn bind(&mut self, out: &Json, id: Id, axes: Vec<Axis>) {
        if let Some(number) = Operand::parse(out).value() {
            self.values.insert(number, Value { id, axes });
        }
    }

    /// Adds a term and binds a recorded tensor to it.
    pub fn give(&mut self, out: &Json, term: Term, axes: Vec<Axis>) {
        let id = self.graph.add(term);
        self.bind(out, id, axes);
    }
}
