//! Ops in programs.

use std::fmt::Write as _;

use super::{Program, text_model};
use crate::graph::{Id, Kind, Term};
use crate::number::Number;

impl Program<'_, '_> {
    pub(super) fn embedding(&mut self, term: &Term) -> String {
        let rows = term.attribute("rows").cloned().unwrap_or(Number::Int(0));
        let width = self.number(&term.width().number);
        let goes_on = self.goes_on(term.inputs[1]);
        let mut module = self.module(term.inputs[1], term);
        if goes_on {
            self.writer.inner.borrow_mut().push(module.clone());
            module.push_str("_rows");
        }
        let index = self.writer.graph.term(term.inputs[0]);
        let offset = match index.op.as_str() {
            "positions" => Some(Number::Int(0)),
            "offset" if self.writer.graph.term(index.inputs[0]).op == "positions" => {
                index.attribute("s").cloned()
            }
            "tokens" => None,
            _ => {
                return self
                    .fault(term, "an embedding of something else than tokens and positions");
            }
        };
        let Some(offset) = offset else {
            let mut scale = term
                .attribute("scale")
                .map_or_else(String::new, |scale| format!(", scale={}", self.number(scale)));
            if term.attribute("round").is_some() {
                scale.push_str(", round='none'");
            }
            return format!("embed(tokens, {module}, {}, {width}{scale})", self.number(&rows));
        };
        let known = Number::apply("-", vec![rows, offset.clone()]);
        let behind = if offset == Number::Int(0) {
            String::new()
        } else {
            format!(", offset={}", self.number(&offset))
        };
        format!("position_embed(tokens, {module}, {}, {width}{behind})", self.number(&known))
    }

    pub(super) fn linear(&mut self, term: &Term) -> String {
        let tap = if self.goes_on(term.inputs[1]) { ", tap=false" } else { "" };
        let mut x = self.operand(term, 0);
        let weight = self.module(term.inputs[1], term);
        if self
            .writer
            .graph
            .weight(term.inputs[1])
            .is_some_and(|path| self.writer.kept_in_half.iter().any(|kept| kept == path))
        {
            x = format!("cast({x}, 'f32_in_f16')");
        }
        let output = !self.writer.output.is_empty() && term.owner == self.writer.output;
        let module = if output { self.path(&term.owner) } else { weight.clone() };
        if output {
            let key = "tie_word_embeddings";
            let shared =
                if weight == module { self.writer.embedding.as_ref() } else { Some(&weight) };
            let tied = shared.map_or_else(String::new, |embedding| {
                format!(", tied={embedding} if {} else none", self.writer.names.name(key))
            });
            return format!(
                "linear({x}, {module}, {}{}{tied})",
                self.number(&term.width().number),
                self.bias(term)
            );
        }
        if term.attribute("transposed").is_some() {
            self.writer
                .transposed
                .borrow_mut()
                .push(self.writer.graph.weight(term.inputs[1]).unwrap_or_default().to_owned());
        }
        let width = self.number(&term.width().number);
        if let Number::Int(size) = term.width().number {
            self.writer.bare.borrow_mut().push(format!("{weight} ({size})"));
        }
        format!("linear({x}, {module}, {width}{}{tap})", self.bias(term))
    }

    /// The row of the token before, with its state.
    pub(super) fn previous(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let size = self.number(&term.width().number);
        let (kind, shape) = match term.word("kept") {
            Some(kind) => (kind, size),
            None => ("conv", format!("{size}, 1")),
        };
        let declaration = format!("kind: {kind}, shape: [{shape}], dtype: activation");
        format!("previous({x}, {})", self.single_state("previous", &declaration, term))
    }

    /// The length of a row, or of each head.
    pub(super) fn length(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let mut text = format!("p_norm({x}, {}", self.attribute(term, "p"));
        if term.shape.len() > 1 {
            text.push_str(", of='heads'");
        }
        if let Some(least) = term.word("least") {
            let _ = write!(text, ", least='{least}'");
        }
        text.push(')');
        text
    }

    /// A mean of two rows by a weight.
    pub(super) fn blend(&mut self, term: &Term) -> String {
        let rows = self.operand(term, 0);
        let before = self.operand(term, 1);
        let Some(path) = self.writer.graph.weight(term.inputs[2]).map(str::to_owned) else {
            return self.fault(term, "a blend without a weight");
        };
        if self.rank(term.inputs[2]) > 1 {
            self.writer.squeezed.borrow_mut().push(path.clone());
        }
        let size = self.number(&term.width().number);
        format!("weight_blend({rows}, {before}, {}, [{size}])", self.path(&path))
    }

    /// A weighted mean of the values so far.
    pub(super) fn wkv(&mut self, term: &Term) -> String {
        let k = self.operand(term, 0);
        let v = self.operand(term, 1);
        let size = self.number(&term.width().number);
        let path = self.path(term.word("path").unwrap_or_default());
        let declaration = format!("kind: recurrent, shape: [{size}, 3], dtype: f32");
        let state = self.state("recurrent", &declaration, term);
        format!("wkv({k}, {v}, {path}, {state})")
    }

    /// A matrix for each choice of a row.
    pub(super) fn expert_linear(&mut self, term: &Term) -> String {
        let rows = self.operand(term, 0);
        let chosen = self.operand(term, 1);
        let Some(stack) = self.writer.graph.weight(term.inputs[2]).map(str::to_owned) else {
            return self.fault(term, "experts without matrices");
        };
        let path = self.path(stack.strip_suffix(".weight").unwrap_or(&stack));
        let width = self.number(&term.width().number);
        let count = self.attribute(term, "n");
        let weights = match term.inputs.get(3) {
            Some(&weights) => format!(", weights={}", self.value(weights)),
            None => String::new(),
        };
        format!("expert_linear({rows}, {chosen}, {path}, {count}, {width}{weights})")
    }

    /// A matrix for each head, or one for all.
    pub(super) fn heads_linear(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let rank = self.rank(self.writer.graph.weight_root(term.inputs[1]));
        let biased = term.attribute("bias").is_some_and(|bias| *bias != Number::Bool(false));
        if biased || rank + term.shape.len() < 4 || term.shape.len() != 2 {
            return self.fault(term, "a product of heads and a matrix with a bias");
        }
        let stack = self.writer.graph.term(term.inputs[1]).clone();
        let path = match stack.op.as_str() {
            // Rows of a matrix, in groups.
            "split_axis" => {
                let path = self.writer.graph.weight(stack.inputs[0]).unwrap_or_default().to_owned();
                let count = self.number(&stack.shape[0].number);
                self.writer.grouped.borrow_mut().push((path.clone(), count));
                self.path(path.strip_suffix(".weight").unwrap_or(&path))
            }
            _ => self.tensor(term, 1),
        };
        let width = self.number(&term.width().number);
        let mut text = format!("heads_linear({x}, {path}, {width}");
        if let Some(layout) = term.word("layout") {
            let _ = write!(text, ", layout='{layout}'");
        }
        if rank == 2 {
            text.push_str(", shared=true");
        }
        text.push(')');
        text
    }

    /// A convolution over the tokens before, with its state.
    pub(super) fn convolution(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let width = term.attribute("width").cloned().unwrap_or(Number::Int(1));
        let before = Number::apply("-", vec![width, Number::Int(1)]);
        let part = match term.attribute("part") {
            Some(Number::Int(part)) => format!("conv{part}"),
            _ => "shape".to_owned(),
        };
        let dtype = if term.kind == Kind::Float { "f32" } else { "activation" };
        let declaration = format!(
            "kind: conv, {part}: [{}, {}], dtype: {dtype}",
            self.number(&term.width().number),
            self.number(&before)
        );
        let state = self.state("conv", &declaration, term);
        let module = self.module(term.inputs[1], term);
        let width = self.attribute(term, "width");
        format!("causal_conv({x}, {module}, {width}, {state}{})", self.bias(term))
    }

    /// A matrix whose rows and columns are divided by their sums in turn.
    pub(super) fn sinkhorn(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let count = match term.attribute("iterations") {
            Some(Number::Int(count)) => self
                .writer
                .names
                .attribute(&term.owner, "iter", *count)
                .unwrap_or(Number::Int(*count)),
            _ => return self.fault(term, "a number of rounds that is not known"),
        };
        format!("sinkhorn({x}, {}, {})", self.number(&count), self.attribute(term, "eps"))
    }

    /// Experts of each token, from a table.
    pub(super) fn choose_by_token(&mut self, term: &Term) -> String {
        let graph = self.writer.graph;
        let mut picks = graph.terms.iter().filter(|other| other.op == "pick");
        let chosen = picks.find(|pick| graph.term(pick.inputs[1]).inputs == term.inputs);
        let Some(scores) = chosen.map(|pick| graph.term(pick.inputs[0]).width()) else {
            return self.fault(term, "choices of which no scores are picked");
        };
        let table = graph.term(term.inputs[1]);
        let path = self.tensor(term, 1);
        let [tokens, count, experts] =
            [&table.shape[0], &table.shape[1], &scores].map(|dim| self.number(&dim.number));
        format!("choose_by_token(tokens, {path}, {tokens}, {count}, {experts})")
    }

    /// A convolution of each channel, and one by groups behind it.
    pub(super) fn grouped_convolution(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let modules = [1, 2].map(|place| self.module(term.inputs[place], term)).join(", ");
        let [width, second, groups] =
            ["width", "second", "groups"].map(|name| self.attribute(term, name));
        let channels = self.number(&term.width().number);
        let declaration =
            format!("kind: conv, shape: [{channels}, {width} + {second} - 2], dtype: activation");
        let state = self.state("conv", &declaration, term);
        format!("grouped_conv({x}, {modules}, {width}, {second}, {groups}, {state})")
    }

    pub(super) fn scan(&mut self, term: &Term) -> String {
        let parts: Vec<String> = (0..4).map(|place| self.operand(term, place)).collect();
        let path = term.word("path").unwrap_or_default().to_owned();
        let state = self.state(
            "recurrent",
            &format!("kind: recurrent, shape: {}, dtype: f32", self.attribute(term, "state")),
            term,
        );
        let mut text = format!("{}({}, {}, {state}", term.op, parts.join(", "), self.path(&path));
        for name in ["dt_min", "dt_max"] {
            if term.attribute(name).is_some() {
                let _ = write!(text, ", {name}={}", self.attribute(term, name));
            }
        }
        if term.op == "ssm1_scan" && term.inputs.len() > 4 {
            let bias = self.tensor(term, 4);
            let _ = write!(text, ", dt_bias={bias}");
        }
        if term.op == "ssd_scan" {
            text.push_str(", stepwise=true");
        }
        text.push(')');
        text
    }

    pub(super) fn gated_norm(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let gate = self.operand(term, 1);
        let mut text = format!(
            "gated_norm({x}, {gate}, {}, {}",
            self.module(term.inputs[2], term),
            self.attribute(term, "eps")
        );
        for name in ["order", "groups", "activation"] {
            if term.attribute(name).is_some() {
                let _ = write!(text, ", {name}={}", self.attribute(term, name));
            }
        }
        if term.word("cast") == Some("after") && term.kind == Kind::Activation {
            text.push_str(", cast='after'");
        }
        if term.kind == Kind::Float {
            text.push_str(", stepwise=true");
        }
        text.push(')');
        text
    }

    pub(super) fn norm(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let weighted = term.inputs.len() > 1;
        let module =
            if weighted { self.module(term.inputs[1], term) } else { self.path(&term.owner) };
        let mut text = format!("{}({x}, {module}, {}", term.op, self.attribute(term, "eps"));
        if !weighted {
            text.push_str(", weight=false");
        }
        if term.op == "layer_norm" && term.attribute("bias") == Some(&Number::Bool(false)) {
            text.push_str(", bias=false");
        }
        let usual = if term.op == "rms_norm" { "before" } else { "after" };
        if let Some(cast) = term.word("cast")
            && cast != usual
            && term.kind == Kind::Activation
        {
            let _ = write!(text, ", cast='{cast}'");
        }
        for name in ["plus_one", "per_head"] {
            if term.attribute(name).is_some() {
                let _ = write!(text, ", {name}=true");
            }
        }
        text.push(')');
        text
    }

    pub(super) fn split(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let at = match term.attribute("at") {
            Some(Number::Int(at)) => *at as usize,
            _ => 0,
        };
        if term.attribute("count") == Some(&Number::Int(2)) && at + 2 == term.shape.len() && at == 0
        {
            return format!("heads({x}, {})", self.number(&term.shape[at].number));
        }
        if term.attribute("count") == Some(&Number::Int(2))
            && at == 1
            && term.shape.len() == 3
            && term.shape[1].size == 1
        {
            return x;
        }
        if term.attribute("count") == Some(&Number::Int(2)) && at == 0 && term.shape.len() == 3 {
            let [outer, inner] = [0, 1].map(|axis| self.number(&term.shape[axis].number));
            return format!("heads(heads(merge({x}), {outer}), {inner})");
        }
        self.fault(term, "splits an axis that `heads` does not")
    }

    pub(super) fn rope(&mut self, term: &Term) -> String {
        let x = self.wide_operand(term);
        // A row without heads is one head.
        let flat = term.shape.len() == 1;
        let x = if flat { format!("heads({x}, 1)") } else { x };
        let table = term.word("table").unwrap_or_default();
        let name = self
            .writer
            .tables
            .iter()
            .find(|(known, _)| known == table)
            .map_or("main", |(_, name)| name);
        let mut text = match term.word("stretch") {
            Some(_) => format!("rope(x, {name}"),
            None => format!("rope({x}, {name}"),
        };
        if let Some(layout) = term.word("layout").filter(|layout| *layout != "half") {
            let _ = write!(text, ", layout='{layout}'");
        }
        if let Some(compute) = term.word("compute").filter(|compute| *compute != "activation") {
            let _ = write!(text, ", compute='{compute}'");
        }
        if let Some(path) = term.word("stretch") {
            // A function takes the path, which is none of the layer's, as a word.
            let body = format!("return {text}, stretch=logs)");
            let function = self.shared_function("turned", "x, logs", &body);
            text = format!("{function}({x}, '{}'", text_model(path));
        }
        text.push(')');
        if flat { format!("merge({text})") } else { text }
    }

    /// An operand in brackets where a product needs them.
    pub(super) fn factor(&mut self, id: Option<Id>, tight: bool) -> String {
        let Some(id) = id else { return String::new() };
        let text = self.value(id);
        if self.bound.contains_key(&id) {
            return text;
        }
        let loose = match self.writer.graph.term(id).op.as_str() {
            "add" | "sub" | "offset" | "log" => true,
            "mul" | "div" | "scale" | "divide" | "inverse" | "neg" | "square" | "rsqrt" => tight,
            _ => false,
        };
        if loose { format!("({text})") } else { text }
    }

    pub(super) fn infix(&mut self, term: &Term) -> String {
        let sign = match term.op.as_str() {
            "add" => "+",
            "sub" => "-",
            "mul" => "*",
            _ => "/",
        };
        let [left, right] = term.inputs[..] else { return self.fault(term, "operands missing") };
        for (weight, rows) in [(right, left), (left, right)] {
            if let Some(path) = self.writer.graph.weight(weight).map(str::to_owned) {
                let op = match sign {
                    "+" => "weight_add",
                    "*" => "weight_scale",
                    _ => break,
                };
                let mut x = self.value(rows);
                let root = self.writer.graph.weight_root(weight);
                let count = self.writer.graph.term(root).width();
                if count.size > 1 && self.is_single(rows) {
                    x = format!("merge(copies({x}, {}))", self.number(&count.number));
                }
                let axes = &self.writer.graph.term(weight).shape;
                if self.writer.graph.term(root).shape.len() == 1
                    && axes.len() == 2
                    && axes[1].size == 1
                {
                    // A number for each head, which rows of heads take from an axis of size 1.
                    let weight = self.value(weight);
                    return format!("{x} {sign} {weight}");
                }
                if self.writer.graph.term(root).shape.len()
                    > self.writer.graph.term(rows).shape.len()
                {
                    self.writer.squeezed.borrow_mut().push(path.clone());
                    let size = self.number(&self.writer.graph.term(root).width().number);
                    return format!("{op}({x}, {}, [{size}])", self.path(&path));
                }
                let sizes: Vec<String> = self
                    .writer
                    .graph
                    .term(self.writer.graph.weight_root(weight))
                    .shape
                    .iter()
                    .map(|dim| self.number(&dim.number))
                    .collect();
                return format!("{op}({x}, {}, [{}])", self.path(&path), sizes.join(", "));
            }
        }
        if sign == "+" || sign == "-" {
            let left = self.value(left);
            let right = self.factor(Some(right), false);
            return format!("{left} {sign} {right}");
        }
        let left = self.factor(Some(left), false);
        let right = self.factor(Some(right), true);
        format!("{left} {sign} {right}")
    }

    /// Is true for rows of one number.
    fn is_single(&self, rows: Id) -> bool {
        self.writer.graph.term(rows).shape.iter().all(|dim| dim.size == 1)
    }

    /// The logarithm of a position, to which a number is added; none if the term is another.
    pub(super) fn log_of_position(&self, term: &Term) -> Option<String> {
        let graph = self.writer.graph;
        let sum = graph.is(graph.bare(term.inputs[0]), "offset")?;
        graph.is(graph.bare(sum.inputs[0]), "positions")?;
        let Some(Number::Int(added @ 1..)) = sum.attribute("s") else { return None };
        let is_flat = |id: &Id| graph.term(*id).shape.len() == 1;
        let rows = self
            .taken
            .iter()
            .find(|name| self.bound.iter().any(|(id, known)| known == *name && is_flat(id)))?;
        let shift = match added - 1 {
            0 => String::new(),
            shift => format!(", shift={shift}.0"),
        };
        // A row of 1, times 1 and the logarithm, less the 1.
        let one = format!("cast(slice({rows}, 0, 1), 'f32') * 0.0 + 1.0");
        Some(format!("temperature({one}, scale=1.0, every=1.0{shift}, factor='f32') - 1.0"))
    }

    pub(super) fn with_number(&mut self, term: &Term, sign: &str) -> String {
        let x = if sign == "+" {
            self.operand(term, 0)
        } else {
            self.factor(term.inputs.first().copied(), false)
        };
        let number = self.attribute(term, "s");
        if sign == "+" {
            return match number.strip_prefix('-') {
                Some(positive) => format!("{x} - {positive}"),
                None => format!("{x} + {number}"),
            };
        }
        let compound = matches!(term.attribute("s"), Some(Number::Apply(..)));
        if compound { format!("{x} {sign} ({number})") } else { format!("{x} {sign} {number}") }
    }

    pub(super) fn choose(&mut self, term: &Term) -> String {
        let mut text = format!("choose({}, {}", self.operand(term, 0), self.attribute(term, "k"));
        for name in ["groups", "keep", "by", "mask"] {
            if term.attribute(name).is_some() {
                let _ = write!(text, ", {name}={}", self.attribute(term, name));
            }
        }
        text.push(')');
        text
    }

    pub(super) fn reduced(&mut self, term: &Term, op: &str, _: &str) -> String {
        let x = self.operand(term, 0);
        let heads = self.writer.graph.term(term.inputs[0]).shape.len() > 1;
        match (op, heads) {
            ("total", true) => format!("total({x}, of='heads')"),
            _ => format!("{op}({x})"),
        }
    }

    pub(super) fn experts(&mut self, term: &Term) -> String {
        let operands: Vec<String> = (0..3).map(|place| self.operand(term, place)).collect();
        let path = term.word("path").unwrap_or_default().to_owned();
        let path = self.path(&path);
        let act = self.act_name(term.word("act").unwrap_or("silu"));
        let mut text = format!(
            "experts({}, {path}, {}, {}, {act}",
            operands.join(", "),
            self.attribute(term, "n"),
            self.attribute(term, "ffn")
        );
        for name in ["form", "bias", "sum", "weigh", "inner", "limit", "alpha", "identities"] {
            if term.attribute(name).is_some() {
                let _ = write!(text, ", {name}={}", self.attribute(term, name));
            }
        }
        text.push(')');
        text
    }

    pub(super) fn clamp(&mut self, term: &Term) -> String {
        let mut text = format!("clamp({}", self.operand(term, 0));
        for name in ["lo", "hi"] {
            if term.attribute(name).is_some() {
                let _ = write!(text, ", {name}={}", self.attribute(term, name));
            }
        }
        text.push(')');
        text
    }

    /// Activation by the config key that names it, or by its op.
    pub(super) fn act_name(&self, op: &str) -> String {
        self.writer
            .activations
            .iter()
            .find(|(_, known)| known == op)
            .map_or_else(|| format!("'{op}'"), |(key, _)| self.writer.names.name(key))
    }

    pub(super) fn activation(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let key = self.writer.activations.iter().find(|(_, known)| *known == term.op);
        match key {
            Some((key, _)) => format!("act({x}, {})", self.writer.names.name(key)),
            None => format!("{}({x})", term.op),
        }
    }
}
