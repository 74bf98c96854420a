//! Terms as programs of the spec language.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::graph::{Dim, Graph, Id, Kind, Term};
use crate::hole::Hole;
use crate::names::Names;
use crate::number::Number;

mod attention;
mod ops;
mod steps;

/// Longest line of a program.
const WIDTH: usize = 150;

/// Parts that programs of a spec share.
pub struct Writer<'w> {
    /// All terms.
    pub graph: &'w Graph,
    /// Names of dims.
    pub names: &'w Names<'w>,
    /// Names of rotary tables, by module and layer type.
    pub tables: &'w [(String, String)],
    /// Prefix of paths that the program leaves out, as `model.layers.0.`.
    pub prefix: String,
    /// Terms that cannot be written.
    pub faults: &'w RefCell<Vec<Hole>>,
    /// States so far, by what they are: name and declaration.
    pub states: &'w RefCell<Vec<(String, String)>>,
    /// Layers of the cache that the layer writes, in order.
    pub cache_layers: Vec<i64>,
    /// Number of the layer.
    pub layer: Option<i64>,
    /// Modules with a size that no config key gives.
    pub bare: &'w RefCell<Vec<String>>,
    /// Weights whose axes of size 1 are dropped.
    pub squeezed: &'w RefCell<Vec<String>>,
    /// Path of the module that gives the logits.
    pub output: String,
    /// Path of the module that embeds tokens, as the spec writes it.
    pub embedding: Option<String>,
    /// Results of the forward of each module.
    pub outputs: &'w BTreeMap<String, Vec<Id>>,
    /// Modules whose matrix is an op, and whose forward goes on behind it: the names of their weights in the spec.
    pub inner: &'w RefCell<Vec<String>>,
    /// Weights that are no `weight` of a module.
    pub alone: &'w RefCell<Vec<String>>,
    /// Weights that stay f32 in a run in f16.
    pub kept_in_half: &'w [String],
    /// Matrices whose rows are those of several, and their number.
    pub grouped: &'w RefCell<Vec<(String, String)>>,
    /// Functions that programs of several layers call, by their heads.
    pub shared: &'w RefCell<BTreeMap<String, String>>,
    /// Weights that are stored the other way round.
    pub transposed: &'w RefCell<Vec<String>>,
    /// Config keys that name activations, with the name.
    pub activations: &'w [(String, String)],
}

/// A program under way.
pub struct Program<'p, 'w> {
    writer: &'p Writer<'w>,
    bound: BTreeMap<Id, String>,
    lines: Vec<String>,
    uses: BTreeMap<Id, usize>,
    taken: Vec<String>,
    /// The term that is written, behind those that read it.
    open: Vec<Id>,
    /// Number of steps without an op that are written.
    unknown: usize,
}

/// Terms that a run or a cache has: a step that reads one and is no op is the hole, and not the value.
pub(crate) const GIVEN: &[&str] = &[
    "positions",
    "mask",
    "filled",
    "constant",
    "cached",
    "rope_cos",
    "rope_sin",
    "rope_both",
    "rope_rotation",
];

impl<'p, 'w> Program<'p, 'w> {
    /// Begins a program whose parameters have names.
    pub fn new(writer: &'p Writer<'w>, parameters: &[(Id, String)], outputs: &[Id]) -> Self {
        let bound: BTreeMap<Id, String> = parameters.iter().cloned().collect();
        let mut uses = BTreeMap::new();
        let mut open = outputs.to_vec();
        for &id in outputs {
            *uses.entry(id).or_insert(0) += 1;
        }
        let mut visited: Vec<Id> = Vec::new();
        while let Some(id) = open.pop() {
            if bound.contains_key(&id) || visited.contains(&id) {
                continue;
            }
            visited.push(id);
            for &input in &writer.graph.term(id).inputs {
                *uses.entry(input).or_insert(0) += 1;
                open.push(input);
            }
        }
        let taken = parameters.iter().map(|(_, name)| name.clone()).collect();
        Self { writer, bound, lines: Vec::new(), uses, taken, open: Vec::new(), unknown: 0 }
    }

    /// Has a call in the place of a term.
    pub fn call(&mut self, id: Id, text: String) {
        if self.uses.get(&id).copied().unwrap_or(0) > 1 {
            let term = self.writer.graph.term(id).clone();
            let name = self.fresh(&term);
            self.lines.push(format!("{name} = {text}"));
            self.bound.insert(id, name);
        } else {
            self.bound.insert(id, text);
        }
    }

    /// Returns the lines so far.
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }

    /// Ends a program with results that are written already.
    pub fn finish_with(mut self, results: &[String]) -> String {
        self.lines.push(format!("return {}", results.join(", ")));
        self.lines.join("\n")
    }

    /// Ends a program with the results it returns.
    pub fn finish(mut self, outputs: &[Id]) -> String {
        let results: Vec<String> = outputs.iter().map(|&id| self.value(id)).collect();
        self.finish_with(&results)
    }

    /// Returns the text of a term: its name, or its expression.
    pub fn value(&mut self, id: Id) -> String {
        if let Some(name) = self.bound.get(&id) {
            return name.clone();
        }
        let term = self.writer.graph.term(id).clone();
        self.open.push(id);
        let text = self.expression(&term);
        self.open.pop();
        let shared = self.uses.get(&id).copied().unwrap_or(0) > 1
            && !matches!(term.op.as_str(), "weight" | "tokens" | "constant");
        if shared || text.len() > WIDTH {
            let name = self.fresh(&term);
            self.lines.push(format!("{name} = {text}"));
            self.bound.insert(id, name.clone());
            return name;
        }
        text
    }

    fn fresh(&mut self, term: &Term) -> String {
        let leaf = term.owner.rsplit('.').next().unwrap_or_default();
        let short = if leaf.ends_with("_proj") { leaf.trim_end_matches("_proj") } else { "" };
        let stem: String = short
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_')
            .collect();
        let numbered =
            stem.is_empty() || stem.chars().next().is_some_and(|letter| letter.is_ascii_digit());
        let base = if numbered || self.reserved(&stem) { "y".to_owned() } else { stem };
        let mut name = base.clone();
        let mut number = 2;
        while self.taken.contains(&name) || self.reserved(&name) {
            name = format!("{base}{number}");
            number += 1;
        }
        self.taken.push(name.clone());
        name
    }

    fn reserved(&self, name: &str) -> bool {
        let ops = [
            "in",
            "if",
            "else",
            "or",
            "and",
            "not",
            "for",
            "return",
            "none",
            "true",
            "false",
            "null",
            "act",
            "linear",
            "heads",
            "merge",
            "split",
            "scale",
            "softmax",
            "experts",
            "mean",
            "total",
            "kv",
            "main",
            "layers",
            "hidden",
            "tokens",
            "attention",
            "norm",
            "gate_up",
            "router",
            "choose",
            "pick",
            "conv",
        ];
        ops.contains(&name) || self.writer.names.has(name)
    }

    fn number(&self, number: &Number) -> String {
        match self.writer.layer {
            Some(layer) => self.writer.names.written(&number.of_layer(layer)),
            None => self.writer.names.written(number),
        }
    }

    fn fault(&self, term: &Term, text: &str) -> String {
        let same = |other: &Term| {
            other.op == term.op
                && other.inputs == term.inputs
                && other.attributes == term.attributes
        };
        let tree =
            self.writer.graph.terms.iter().position(same).map(|id| self.writer.graph.tree(id, 8));
        self.writer.faults.borrow_mut().push(Hole {
            reason: text.to_owned(),
            module: term.owner.clone(),
            place: term.at.clone(),
            tree: tree.unwrap_or_default(),
        });
        format!("hole_{}", term.op)
    }

    /// Is true if the module of a weight gives something else than the term that is written.
    fn goes_on(&self, weight: Id) -> bool {
        let path = self.writer.graph.weight(weight).and_then(|path| path.strip_suffix(".weight"));
        let outputs = path.and_then(|path| self.writer.outputs.get(path));
        outputs.is_some_and(|outputs| {
            !outputs.is_empty() && self.open.last().is_none_or(|id| !outputs.contains(id))
        })
    }

    /// Path of a weight's module, below the prefix.
    fn module(&self, weight: Id, term: &Term) -> String {
        let path = self.writer.graph.weight(weight).unwrap_or_default();
        match path.strip_suffix(".weight") {
            Some(module) => self.path(module),
            None if path.is_empty()
                || self.writer.graph.term(self.writer.graph.weight_root(weight)).op != "weight" =>
            {
                self.fault(term, "a matrix or weight that the class computes")
            }
            None => {
                self.writer.alone.borrow_mut().push(path.to_owned());
                self.path(path)
            }
        }
    }

    fn path(&self, path: &str) -> String {
        let inner = if self.writer.prefix.is_empty() {
            None
        } else {
            path.strip_prefix(&self.writer.prefix)
        };
        inner.map_or_else(|| text_model(path), str::to_owned)
    }

    fn bias(&self, term: &Term) -> String {
        match term.attribute("bias") {
            None | Some(Number::Bool(false)) => String::new(),
            Some(number) => format!(", bias={}", self.number(number)),
        }
    }

    fn expression(&mut self, term: &Term) -> String {
        let first = term.inputs.first().copied();
        match term.op.as_str() {
            "tokens" => "tokens".to_owned(),
            "weight" => self.parameter(term),
            "with_ones" if term.shape.len() == 2 && first.is_some_and(|id| self.rank(id) == 1) => {
                format!("heads({}, {})", self.operand(term, 0), self.number(&term.shape[0].number))
            }
            "linear" => self.linear(term),
            "embed" => self.embedding(term),
            "rms_norm" | "layer_norm" => self.norm(term),
            "unit" => {
                format!("l2_norm({}, {})", self.operand(term, 0), self.attribute(term, "eps"))
            }
            "standard" => {
                let x = self.operand(term, 0);
                let path = self.path(&term.owner);
                format!(
                    "layer_norm({x}, {path}, {}, bias=false, weight=false)",
                    self.attribute(term, "eps")
                )
            }
            "split_axis" => self.split(term),
            "merge_axes"
                if term.attribute("count") == Some(&Number::Int(2))
                    && term.attribute("at") == Some(&Number::Int(term.shape.len() as i64 - 1)) =>
            {
                format!("merge({})", self.operand(term, 0))
            }
            "rope" => self.rope(term),
            "attend" => self.attend(term),
            "slice" => format!(
                "slice({}, {}, {})",
                self.operand(term, 0),
                self.attribute(term, "from"),
                self.attribute(term, "to")
            ),
            "concat" => {
                let parts: Vec<String> =
                    (0..term.inputs.len()).map(|place| self.operand(term, place)).collect();
                format!("concat({})", parts.join(", "))
            }
            "add" | "sub" | "mul" | "div" => self.infix(term),
            "scale" => self.with_number(term, "*"),
            "offset" => self.with_number(term, "+"),
            "divide" => self.with_number(term, "/"),
            "inverse" => {
                let x = self.factor(first, false);
                format!("{} / {x}", self.attribute(term, "s"))
            }
            "neg" => {
                let x = self.factor(first, false);
                format!("{x} * -1.0")
            }
            "cast" => {
                let kind = if term.kind == Kind::Float { "'f32'" } else { "'activation'" };
                format!("cast({}, {kind})", self.operand(term, 0))
            }
            "choose" => self.choose(term),
            "pick" => format!("pick({}, {})", self.operand(term, 0), self.operand(term, 1)),
            "mean" => self.reduced(term, "mean", "numbers"),
            "sum" => self.reduced(term, "total", "row"),
            "experts" => self.experts(term),
            "clamp" => self.clamp(term),
            "causal_conv" => self.convolution(term),
            "previous" => self.previous(term),
            "mixed_streams" => {
                format!("mix_streams({}, {})", self.operand(term, 0), self.operand(term, 1))
            }
            "choose_by_token" => self.choose_by_token(term),
            "sinkhorn" => self.sinkhorn(term),
            "permute_row" if term.shape.len() == 2 => {
                let x = self.operand(term, 0);
                let [rows, columns] = [1, 0].map(|axis| self.number(&term.shape[axis].number));
                let count = self.number(&Dim::product(&term.shape).number);
                format!("heads(merge(regroup(heads(merge({x}), {count}), {rows})), {columns})")
            }
            "grouped_conv" => self.grouped_convolution(term),
            "p_norm" => self.length(term),
            "mean_axis" if self.is_over_heads(term) => {
                format!("mean({}, over='heads')", self.operand(term, 0))
            }
            "weight_blend" => self.blend(term),
            "wkv" => self.wkv(term),
            "expert_linear" => self.expert_linear(term),
            "regroup" => {
                format!("regroup({}, {})", self.operand(term, 0), self.attribute(term, "n"))
            }
            "heads_linear" => self.heads_linear(term),
            "sum_axis" if self.sums_heads(term) => {
                let x = self.wide_operand(term);
                let heads = &self.writer.graph.term(term.inputs[0]).shape[0];
                format!("mean({x}, over='heads') * {}", self.number(&heads.number))
            }
            "log_sigmoid" => {
                let x = self.factor(first, true);
                format!("softplus({x} * -1.0) * -1.0")
            }
            "mix_streams" => {
                let x = self.wide_operand(term);
                format!("merge(mix_streams({x}, heads({}, 1)))", self.operand(term, 1))
            }
            "outer" => {
                let x = self.wide_operand(term);
                format!("outer({x}, {})", self.operand(term, 1))
            }
            "rsqrt" => format!("1.0 / square_root({})", self.operand(term, 0)),
            "repeat_all"
                if term.shape.len() == 1 && term.attribute("axis") == Some(&Number::Int(0)) =>
            {
                let x = self.operand(term, 0);
                format!("merge(copies({x}, {}))", self.attribute(term, "n"))
            }
            "index_topk" => {
                let parts: Vec<String> = (0..3).map(|place| self.operand(term, place)).collect();
                let key = self.writer.graph.term(term.inputs[1]);
                let width = self.number(&key.width().number);
                let dtype = if key.kind == Kind::Float { "f32" } else { "activation" };
                let declaration = format!("kind: index, shape: [1, {width}], dtype: {dtype}");
                let state = self.state("index", &declaration, term);
                format!(
                    "index_topk({}, {state}, {}, {})",
                    parts.join(", "),
                    self.attribute(term, "topk"),
                    self.attribute(term, "scale")
                )
            }
            "repeat_each"
                if term.shape.len() == 2 && term.attribute("axis") == Some(&Number::Int(0)) =>
            {
                let x = self.operand(term, 0);
                let (count, heads) =
                    (self.attribute(term, "n"), self.number(&term.shape[0].number));
                format!("regroup(heads(merge(merge(copies({x}, {count}))), {heads}), {count})")
            }
            "temperature" => {
                let mut text = format!(
                    "temperature({}, {}, {}",
                    self.operand(term, 0),
                    self.attribute(term, "scale"),
                    self.attribute(term, "every")
                );
                if term.attribute("shift") != Some(&Number::Real(0.0)) {
                    let _ = write!(text, ", shift={}", self.attribute(term, "shift"));
                }
                if let Some(form) = term.word("form") {
                    let _ = write!(text, ", form='{form}'");
                }
                if term.attribute("factor").is_some() {
                    text.push_str(", factor='f32'");
                }
                text.push(')');
                text
            }
            "xielu" => {
                format!("xielu({}, {})", self.operand(term, 0), self.path(&term.owner.clone()))
            }
            "latent_attend" => self.latent(term),
            "ssd_scan" | "ssm1_scan" => self.scan(term),
            "delta_rule" => {
                let parts: Vec<String> = (0..5).map(|place| self.operand(term, place)).collect();
                let eps = if term.attribute("eps").is_some() {
                    format!(", eps={}", self.attribute(term, "eps"))
                } else {
                    String::new()
                };
                let state = self.state(
                    "recurrent",
                    &format!(
                        "kind: recurrent, shape: {}, dtype: f32",
                        self.attribute(term, "state")
                    ),
                    term,
                );
                format!(
                    "delta_rule({}, {state}, {}{eps})",
                    parts.join(", "),
                    self.attribute(term, "scale")
                )
            }
            "log_decay" => {
                let floor = if term.attribute("floor").is_some() {
                    format!(", floor={}", self.attribute(term, "floor"))
                } else {
                    String::new()
                };
                for &weight in &term.inputs[1..] {
                    if self.writer.graph.term(weight).shape.len() > 1 {
                        self.writer
                            .squeezed
                            .borrow_mut()
                            .push(self.writer.graph.weight(weight).unwrap_or_default().to_owned());
                    }
                }
                format!(
                    "log_decay({}, {}, {}{floor})",
                    self.operand(term, 0),
                    self.tensor(term, 1),
                    self.tensor(term, 2)
                )
            }
            "gated_norm" => self.gated_norm(term),
            "square" => {
                let x = self.named(term.inputs[0]);
                format!("{x} * {x}")
            }
            "silu" | "gelu" | "gelu_tanh" | "gelu_new" | "gelu_fast" | "relu" | "relu2"
            | "quick_gelu" => self.activation(term),
            "expand" if term.attribute("at") == Some(&Number::Int(0)) => {
                let x = self.operand(term, 0);
                format!("copies({x}, {})", self.number(&term.shape[0].number))
            }
            "absolute" => {
                let x = self.wide_operand(term);
                format!("{x} * sign({x})")
            }
            "sigmoid" | "tanh" | "softplus" | "softmax" | "square_root" | "sign" | "exp" => {
                let x = self.wide_operand(term);
                format!("{}({x})", term.op)
            }
            "log" => match self.log_of_position(term) {
                Some(text) => text,
                None => self.unknown(term),
            },
            op if GIVEN.contains(&op) => self.given(term),
            _ => self.unknown(term),
        }
    }

    /// A weight as a value of each row of the program's first parameter.
    fn parameter(&self, term: &Term) -> String {
        let rows = self.taken.first().map_or("tokens", String::as_str);
        let path = self.path(term.word("path").unwrap_or_default());
        let sizes: Vec<String> = term.shape.iter().map(|dim| self.number(&dim.number)).collect();
        format!("parameter({rows}, {path}, [{}])", sizes.join(", "))
    }

    /// Number of axes of a term's rows.
    fn rank(&self, id: Id) -> usize {
        self.writer.graph.term(id).shape.len()
    }

    /// The name of a term, which gets one if it has none.
    fn named(&mut self, id: Id) -> String {
        let text = self.value(id);
        if self.bound.get(&id) == Some(&text) {
            return text;
        }
        let term = self.writer.graph.term(id).clone();
        let name = self.fresh(&term);
        self.lines.push(format!("{name} = {text}"));
        self.bound.insert(id, name.clone());
        name
    }

    /// The first operand, in f32 if the result is.
    fn wide_operand(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let lifted = term.kind == Kind::Float
            && self.writer.graph.term(term.inputs[0]).kind == Kind::Activation;
        if lifted { format!("cast({x}, 'f32')") } else { x }
    }

    /// Path of an operand that is a raw tensor.
    fn tensor(&mut self, term: &Term, place: usize) -> String {
        let operand = term.inputs[place];
        match self.writer.graph.weight(operand) {
            Some(path) => self.path(path),
            None => self.fault(term, "an operand that is no weight"),
        }
    }

    fn operand(&mut self, term: &Term, place: usize) -> String {
        self.value(term.inputs[place])
    }

    fn attribute(&self, term: &Term, name: &str) -> String {
        term.attribute(name).map(|number| self.number(number)).unwrap_or_default()
    }
}

/// A path without the prefix of the wrapper around a text model.
pub fn text_model(path: &str) -> String {
    for (wrapped, bare) in [
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.", ""),
        ("model.text_model.", "model."),
        ("thinker.", ""),
    ] {
        if let Some(tail) = path.strip_prefix(wrapped) {
            return format!("{bare}{tail}");
        }
    }
    path.to_owned()
}
