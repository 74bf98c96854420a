//! Terms as programs of the spec language.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::graph::{Graph, Id, Kind, Term};
use crate::names::Names;
use crate::number::Number;

/// Longest line of a program.
const WIDTH: usize = 150;

/// What programs of a spec share.
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
    pub faults: &'w RefCell<Vec<String>>,
    /// States so far, by what they are: name and declaration.
    pub states: &'w RefCell<Vec<(String, String)>>,
    /// Layers of the cache that the layer writes, in order.
    pub cache_layers: Vec<i64>,
    /// Number of the layer.
    pub layer: Option<i64>,
    /// Weights whose axes of size 1 are dropped.
    pub squeezed: &'w RefCell<Vec<String>>,
    /// Path of the module that gives the logits.
    pub output: String,
    /// Path of the module that embeds tokens, as the spec writes it.
    pub embedding: Option<String>,
    /// Whether the config says if both share a matrix.
    pub can_tie: bool,
    /// Weights that are stored the other way round.
    pub transposed: &'w RefCell<Vec<String>>,
    /// Config keys that name activations, with the name.
    pub activations: &'w [(String, String)],
}

/// A program under way.
pub struct Program<'p, 'w> {
    writer: &'p Writer<'w>,
    bound: HashMap<Id, String>,
    lines: Vec<String>,
    uses: HashMap<Id, usize>,
    taken: Vec<String>,
}

impl<'p, 'w> Program<'p, 'w> {
    /// Begins a program whose parameters have names.
    pub fn new(writer: &'p Writer<'w>, parameters: &[(Id, String)], outputs: &[Id]) -> Self {
        let bound: HashMap<Id, String> = parameters.iter().cloned().collect();
        let mut uses = HashMap::new();
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
        Self { writer, bound, lines: Vec::new(), uses, taken }
    }

    /// Has calls of functions in the place of terms: binds results to names by lines that are given.
    pub fn bind(&mut self, id: Id, name: &str) {
        self.bound.insert(id, name.to_owned());
        self.taken.push(name.to_owned());
    }

    /// Adds a line as it is.
    pub fn line(&mut self, line: String) {
        self.lines.push(line);
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

    /// Ends a program with the results it returns.
    pub fn finish(mut self, outputs: &[Id]) -> String {
        let results: Vec<String> = outputs.iter().map(|&id| self.value(id)).collect();
        self.lines.push(format!("return {}", results.join(", ")));
        self.lines.join("\n")
    }

    /// Returns the text of a term: its name, or its expression.
    pub fn value(&mut self, id: Id) -> String {
        if let Some(name) = self.bound.get(&id) {
            return name.clone();
        }
        let term = self.writer.graph.term(id).clone();
        let text = self.expression(&term);
        let shared = self.uses.get(&id).copied().unwrap_or(0) > 1 && !matches!(term.op.as_str(), "weight" | "tokens" | "constant");
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
        let stem: String = short.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        let numbered = stem.is_empty() || stem.chars().next().is_some_and(|letter| letter.is_ascii_digit());
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
        let ops = ["in", "if", "else", "or", "and", "not", "for", "return", "none", "true", "false", "null", "act", "linear", "heads", "merge", "split", "scale", "softmax", "experts", "mean", "total", "kv", "main", "layers", "hidden", "tokens", "attention", "norm", "gate_up", "router", "choose", "pick", "conv"];
        ops.contains(&name) || self.writer.names.dims().iter().any(|(dim, _)| dim == name)
    }

    fn number(&self, number: &Number) -> String {
        self.writer.names.written(number)
    }

    fn fault(&self, term: &Term, text: &str) -> String {
        let known = self.writer.graph.terms.iter().position(|other| other.op == term.op && other.inputs == term.inputs && other.attributes == term.attributes);
        let tree = known.filter(|_| std::env::var_os("ONBOARD_TREES").is_some()).map_or_else(String::new, |id| format!("\n        {}", self.writer.graph.tree(id, 8)));
        self.writer.faults.borrow_mut().push(format!("{text} ({} {}){tree}", term.owner, term.at));
        format!("hole_{}", term.op)
    }

    /// Path of a weight's module, below the prefix.
    fn module(&self, weight: Id, term: &Term) -> String {
        let path = self.writer.graph.weight(weight).unwrap_or_default();
        match path.strip_suffix(".weight") {
            Some(module) => self.path(module),
            None => { self.fault(term, &format!("`{path}` is no `weight` of a module")) }
        }
    }

    fn path(&self, path: &str) -> String {
        let inner = if self.writer.prefix.is_empty() { None } else { path.strip_prefix(&self.writer.prefix) };
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
            "weight" => { let path = term.word("path").unwrap_or_default().to_owned(); self.path(&path) }
            "linear" => self.linear(term),
            "embed" => {
                self.embedding(term)
            }
            "rms_norm" | "layer_norm" => self.norm(term),
            "unit" => format!("l2_norm({}, {})", self.operand(term, 0), self.attribute(term, "eps")),
            "standard" => { let x = self.operand(term, 0); let path = self.path(&term.owner); format!("layer_norm({x}, {path}, {}, bias=false, weight=false)", self.attribute(term, "eps")) }
            "split_axis" => self.split(term),
            "merge_axes" if term.attribute("count") == Some(&Number::Int(2)) && term.attribute("at") == Some(&Number::Int(term.shape.len() as i64 - 1)) => format!("merge({})", self.operand(term, 0)),
            "rope" => self.rope(term),
            "attend" => self.attend(term),
            "slice" => format!("slice({}, {}, {})", self.operand(term, 0), self.attribute(term, "from"), self.attribute(term, "to")),
            "concat" => { let parts: Vec<String> = (0..term.inputs.len()).map(|place| self.operand(term, place)).collect(); format!("concat({})", parts.join(", ")) }
            "add" | "sub" | "mul" | "div" => self.infix(term),
            "scale" => self.with_number(term, "*"),
            "offset" => self.with_number(term, "+"),
            "divide" => self.with_number(term, "/"),
            "inverse" => { let x = self.factor(first, false); format!("{} / {x}", self.attribute(term, "s")) }
            "neg" => { let x = self.factor(first, false); format!("{x} * -1.0") }
            "cast" => { let kind = if term.kind == Kind::Float { "'f32'" } else { "'activation'" }; format!("cast({}, {kind})", self.operand(term, 0)) }
            "choose" => self.choose(term),
            "pick" => format!("pick({}, {})", self.operand(term, 0), self.operand(term, 1)),
            "mean" => self.reduced(term, "mean", "numbers"),
            "sum" => self.reduced(term, "total", "row"),
            "experts" => self.experts(term),
            "clamp" => self.clamp(term),
            "causal_conv" => {
                let x = self.operand(term, 0);
                let before = Number::apply("-", vec![term.attribute("width").cloned().unwrap_or(Number::Int(1)), Number::Int(1)]);
                let state = self.state("conv", &format!("kind: conv, shape: [{}, {}], dtype: activation", self.number(&term.width().number), self.number(&before)), term);
                format!("causal_conv({x}, {}, {}, {state}{})", self.module(term.inputs[1], term), self.attribute(term, "width"), self.bias(term))
            }
            "temperature" => {
                let mut text = format!("temperature({}, {}, {}", self.operand(term, 0), self.attribute(term, "scale"), self.attribute(term, "every"));
                if term.attribute("shift") != Some(&Number::Real(0.0)) { text.push_str(&format!(", shift={}", self.attribute(term, "shift"))); }
                if term.attribute("factor").is_some() { text.push_str(", factor='f32'"); }
                text.push(')');
                text
            }
            "xielu" => format!("xielu({}, {})", self.operand(term, 0), self.path(&term.owner.clone())),
            "latent_attend" => self.latent(term),
            "ssd_scan" | "ssm1_scan" => self.scan(term),
            "delta_rule" => {
                let parts: Vec<String> = (0..5).map(|place| self.operand(term, place)).collect();
                let eps = if term.attribute("eps").is_some() { format!(", eps={}", self.attribute(term, "eps")) } else { String::new() };
                let state = self.state("recurrent", &format!("kind: recurrent, shape: {}, dtype: f32", self.attribute(term, "state")), term);
                format!("delta_rule({}, {state}, {}{eps})", parts.join(", "), self.attribute(term, "scale"))
            }
            "log_decay" => {
                let floor = if term.attribute("floor").is_some() { format!(", floor={}", self.attribute(term, "floor")) } else { String::new() };
                format!("log_decay({}, {}, {}{floor})", self.operand(term, 0), self.operand(term, 1), self.operand(term, 2))
            }
            "gated_norm" => self.gated_norm(term),
            "square" => { let x = self.operand(term, 0); format!("{x} * {x}") }
            "with_ones" if term.shape.len() == 2 && term.shape[1].size == 1 => { let size = self.number(&term.shape[0].number); format!("heads({}, {size})", self.operand(term, 0)) }
            "silu" | "gelu" | "gelu_tanh" | "gelu_new" | "gelu_fast" | "relu" | "relu2" | "quick_gelu" => self.activation(term),
            "expand" if term.attribute("at") == Some(&Number::Int(0)) => { let x = self.operand(term, 0); format!("copies({x}, {})", self.number(&term.shape[0].number)) }
            "sigmoid" | "tanh" | "softplus" | "softmax" | "square_root" | "absolute" | "sign" => {
                let x = self.operand(term, 0);
                let lifted = term.kind == Kind::Float && self.writer.graph.term(term.inputs[0]).kind == Kind::Activation;
                if lifted { format!("{}(cast({x}, 'f32'))", term.op) } else { format!("{}({x})", term.op) }
            }
            _ => {
                for place in 0..term.inputs.len() { let _ = self.operand(term, place); }
                let reason = term.word("reason").map_or_else(|| format!("no op for `{}`", term.op), str::to_owned);
                self.fault(term, &reason)
            }
        }
    }

    fn operand(&mut self, term: &Term, place: usize) -> String {
        self.value(term.inputs[place])
    }

    fn attribute(&self, term: &Term, name: &str) -> String {
        term.attribute(name).map(|number| self.number(number)).unwrap_or_default()
    }

    fn embedding(&mut self, term: &Term) -> String {
        let rows = term.attribute("rows").cloned().unwrap_or(Number::Int(0));
        let width = self.number(&term.width().number);
        let module = self.module(term.inputs[1], term);
        let index = self.writer.graph.term(term.inputs[0]);
        let offset = match index.op.as_str() {
            "positions" => Some(Number::Int(0)),
            "offset" if self.writer.graph.term(index.inputs[0]).op == "positions" => index.attribute("s").cloned(),
            "tokens" => None,
            _ => return self.fault(term, "an embedding of something else than tokens and positions"),
        };
        let Some(offset) = offset else {
            let mut scale = term.attribute("scale").map_or_else(String::new, |scale| format!(", scale={}", self.number(scale)));
            if term.attribute("round").is_some() { scale.push_str(", round='none'"); }
            return format!("embed(tokens, {module}, {}, {width}{scale})", self.number(&rows));
        };
        let known = Number::apply("-", vec![rows, offset.clone()]);
        let behind = if offset == Number::Int(0) { String::new() } else { format!(", offset={}", self.number(&offset)) };
        format!("position_embed(tokens, {module}, {}, {width}{behind})", self.number(&known))
    }

    fn linear(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let weight = self.module(term.inputs[1], term);
        let output = !self.writer.output.is_empty() && term.owner == self.writer.output;
        let module = if output { self.path(&term.owner) } else { weight.clone() };
        if output {
            let key = "tie_word_embeddings";
            let tied = match (weight == module, &self.writer.embedding) {
                (true, Some(embedding)) if self.writer.can_tie => format!(", tied={embedding} if {} else none", self.writer.names.name(key)),
                (true, _) => String::new(),
                (false, _) if self.writer.can_tie => format!(", tied={weight} if {} else none", self.writer.names.name(key)),
                (false, _) => format!(", tied={weight}"),
            };
            return format!("linear({x}, {module}, {}{}{tied})", self.number(&term.width().number), self.bias(term));
        }
        if term.attribute("transposed").is_some() {
            self.writer.transposed.borrow_mut().push(self.writer.graph.weight(term.inputs[1]).unwrap_or_default().to_owned());
        }
        format!("linear({x}, {module}, {}{})", self.number(&term.width().number), self.bias(term))
    }

    fn scan(&mut self, term: &Term) -> String {
        let parts: Vec<String> = (0..4).map(|place| self.operand(term, place)).collect();
        let path = term.word("path").unwrap_or_default().to_owned();
        let state = self.state("recurrent", &format!("kind: recurrent, shape: {}, dtype: f32", self.attribute(term, "state")), term);
        let mut text = format!("{}({}, {}, {state}", term.op, parts.join(", "), self.path(&path));
        for name in ["dt_min", "dt_max"] {
            if term.attribute(name).is_some() { text.push_str(&format!(", {name}={}", self.attribute(term, name))); }
        }
        if term.op == "ssm1_scan" && term.inputs.len() > 4 {
            let bias = self.operand(term, 4);
            text.push_str(&format!(", dt_bias={bias}"));
        }
        if term.op == "ssd_scan" { text.push_str(", stepwise=true"); }
        text.push(')');
        text
    }

    fn gated_norm(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let gate = self.operand(term, 1);
        let mut text = format!("gated_norm({x}, {gate}, {}, {}", self.module(term.inputs[2], term), self.attribute(term, "eps"));
        for name in ["order", "groups", "activation"] {
            if term.attribute(name).is_some() { text.push_str(&format!(", {name}={}", self.attribute(term, name))); }
        }
        if term.word("cast") == Some("after") && term.kind == Kind::Activation { text.push_str(", cast='after'"); }
        if term.kind == Kind::Float { text.push_str(", stepwise=true"); }
        text.push(')');
        text
    }

    fn norm(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let weighted = term.inputs.len() > 1;
        let module = if weighted { self.module(term.inputs[1], term) } else { self.path(&term.owner) };
        let mut text = format!("{}({x}, {module}, {}", term.op, self.attribute(term, "eps"));
        if !weighted { text.push_str(", weight=false"); }
        if term.op == "layer_norm" && term.attribute("bias") == Some(&Number::Bool(false)) { text.push_str(", bias=false"); }
        let usual = if term.op == "rms_norm" { "before" } else { "after" };
        if let Some(cast) = term.word("cast") {
            if cast != usual && term.kind == Kind::Activation { text.push_str(&format!(", cast='{cast}'")); }
        }
        for name in ["plus_one", "per_head"] {
            if term.attribute(name).is_some() { text.push_str(&format!(", {name}=true")); }
        }
        text.push(')');
        text
    }

    fn split(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let at = match term.attribute("at") { Some(Number::Int(at)) => *at as usize, _ => 0 };
        if term.attribute("count") == Some(&Number::Int(2)) && at + 2 == term.shape.len() && at == 0 {
            return format!("heads({x}, {})", self.number(&term.shape[at].number));
        }
        if term.attribute("count") == Some(&Number::Int(2)) && at == 1 && term.shape.len() == 3 && term.shape[1].size == 1 {
            return x;
        }
        self.fault(term, "splits an axis that `heads` does not")
    }

    fn rope(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let table = term.word("table").unwrap_or_default();
        let name = self.writer.tables.iter().find(|(known, _)| known == table).map_or("main", |(_, name)| name);
        let mut text = format!("rope({x}, {name}");
        if let Some(layout) = term.word("layout").filter(|layout| *layout != "half") { text.push_str(&format!(", layout='{layout}'")); }
        if let Some(compute) = term.word("compute").filter(|compute| *compute != "activation") { text.push_str(&format!(", compute='{compute}'")); }
        text.push(')');
        text
    }

    /// Name of the state of this kind and shape; the first has the usual name.
    fn state(&self, usual: &str, declaration: &str, term: &Term) -> String {
        let place = match term.attribute("layer") {
            Some(Number::Int(layer)) if self.writer.cache_layers.len() > 1 => self.writer.cache_layers.iter().position(|known| known == layer),
            _ => None,
        };
        let layers = self.writer.cache_layers.len();
        let declaration = match place {
            Some(0) => format!("{declaration}, layer: {layers} * i"),
            Some(place) => format!("{declaration}, layer: {layers} * i + {place}"),
            None => declaration.to_owned(),
        };
        let mut states = self.writer.states.borrow_mut();
        if let Some((name, _)) = states.iter().find(|(_, known)| *known == declaration) {
            return name.clone();
        }
        let mut name = usual.to_owned();
        let mut number = 2;
        while states.iter().any(|(known, _)| *known == name) {
            name = format!("{usual}_{number}");
            number += 1;
        }
        states.push((name.clone(), declaration));
        name
    }

    fn row(&self, id: Id) -> String {
        let sizes: Vec<String> = self.writer.graph.term(id).shape.iter().map(|dim| self.number(&dim.number)).collect();
        format!("[{}]", sizes.join(", "))
    }

    /// The layer whose keys attention reads, if it is an earlier one.
    fn borrowed_layer(&self, term: &Term) -> Option<i64> {
        match (term.attribute("layer"), self.writer.layer) {
            (Some(Number::Int(layer)), Some(own)) if *layer < own && !self.writer.cache_layers.contains(layer) => Some(*layer),
            _ => None,
        }
    }

    fn attend(&mut self, term: &Term) -> String {
        let declaration = format!("kind: attention, k: {}, v: {}, dtype: activation", self.row(term.inputs[1]), self.row(term.inputs[2]));
        if let Some(layer) = self.borrowed_layer(term) {
            let q = self.operand(term, 0);
            let mut text = format!("attend_to({q}, {}, {layer}, {}", self.state("kv", &declaration, term), self.scale(term));
            self.attention_options(term, &mut text);
            return self.as_heads(term, text);
        }
        let mut operands = Vec::new();
        for (place, name) in ["q", "k", "v"].iter().enumerate() {
            let text = self.operand(term, place);
            let id = term.inputs[place];
            let free = !self.taken.iter().any(|taken| taken == name);
            if self.bound.contains_key(&id) || text.len() < 24 || !free {
                operands.push(text);
                continue;
            }
            self.lines.push(format!("{name} = {text}"));
            self.taken.push((*name).to_owned());
            self.bound.insert(id, (*name).to_owned());
            operands.push((*name).to_owned());
        }
        let mut text = format!("attend({}, {}, {}", operands.join(", "), self.state("kv", &declaration, term), self.scale(term));
        self.attention_options(term, &mut text);
        self.as_heads(term, text)
    }

    fn as_heads(&self, term: &Term, text: String) -> String {
        if term.attribute("flat").is_some() { text } else { format!("heads({text}, {})", self.number(&term.shape[0].number)) }
    }

    fn scale(&self, term: &Term) -> String {
        match (term.attribute("scale"), term.attribute("divided")) {
            (Some(scale), _) => self.number(scale),
            (None, Some(divisor)) => self.number(&Number::apply("/", vec![Number::Real(1.0), divisor.clone()])),
            _ => "1.0".to_owned(),
        }
    }

    fn attention_options(&mut self, term: &Term, text: &mut String) {
        match term.word("mask") {
            Some("create_sliding_window_causal_mask") => text.push_str(&format!(", window={}", self.writer.names.name("sliding_window"))),
            Some("create_chunked_causal_mask") => text.push_str(&format!(", window={}, chunked=true", self.writer.names.name("attention_chunk_size"))),
            _ => {}
        }
        if let Some(cap) = term.attribute("softcap") { text.push_str(&format!(", softcap={}", self.number(cap))); }
        if term.attribute("sinks").is_some() {
            let sinks = self.operand(term, 3);
            text.push_str(&format!(", sinks={sinks}"));
            if term.word("sink_form").is_some() { text.push_str(", sink_form='gate'"); }
        }
        if term.attribute("highest").is_some() && term.word("soft") == Some("activation") { text.push_str(", softmax='activation'"); }
        if let Some(rounding) = term.word("scores").filter(|rounding| *rounding != "rounded") { text.push_str(&format!(", scores='{rounding}'")); }
        text.push(')');
    }

    fn latent(&mut self, term: &Term) -> String {
        let mut operands = Vec::new();
        for (place, name) in ["q", "c", "r"].iter().enumerate() {
            let text = self.operand(term, place);
            let free = !self.taken.iter().any(|taken| taken == name);
            if text.len() < 24 || !free { operands.push(text); continue; }
            self.lines.push(format!("{name} = {text}"));
            self.taken.push((*name).to_owned());
            self.bound.insert(term.inputs[place], (*name).to_owned());
            operands.push((*name).to_owned());
        }
        let module = self.module(term.inputs[3], term);
        let size = |place: usize| self.number(&self.writer.graph.term(term.inputs[place]).width().number);
        let state = self.state("latent", &format!("kind: latent, k: [1, {}], v: [1, {}], dtype: activation", size(1), size(2)), term);
        let mut text = format!("latent_attend({}, {module}, {state}, {}, {}", operands.join(", "), self.attribute(term, "scale"), self.attribute(term, "v_dim"));
        if term.word("mask") == Some("create_sliding_window_causal_mask") { text.push_str(&format!(", window={}", self.writer.names.name("sliding_window"))); }
        text.push(')');
        if term.attribute("flat").is_some() { text } else { format!("heads({text}, {})", self.number(&term.shape[0].number)) }
    }

    /// An operand in brackets where a product needs them.
    fn factor(&mut self, id: Option<Id>, tight: bool) -> String {
        let Some(id) = id else { return String::new() };
        let text = self.value(id);
        if self.bound.contains_key(&id) { return text; }
        let loose = match self.writer.graph.term(id).op.as_str() {
            "add" | "sub" | "offset" => true,
            "mul" | "div" | "scale" | "divide" | "inverse" | "neg" | "square" => tight,
            _ => false,
        };
        if loose { format!("({text})") } else { text }
    }

    fn infix(&mut self, term: &Term) -> String {
        let sign = match term.op.as_str() { "add" => "+", "sub" => "-", "mul" => "*", _ => "/" };
        let [left, right] = term.inputs[..] else { return self.fault(term, "operands missing") };
        for (weight, rows) in [(right, left), (left, right)] {
            if let Some(path) = self.writer.graph.weight(weight).map(str::to_owned) {
                let op = match sign { "+" => "weight_add", "*" => "weight_scale", _ => break };
                let x = self.value(rows);
                let root = self.writer.graph.weight_root(weight);
                if self.writer.graph.term(root).shape.len() > self.writer.graph.term(rows).shape.len() {
                    self.writer.squeezed.borrow_mut().push(path.clone());
                    let size = self.number(&self.writer.graph.term(root).width().number);
                    return format!("{op}({x}, {}, [{size}])", self.path(&path));
                }
                let sizes: Vec<String> = self.writer.graph.term(self.writer.graph.weight_root(weight)).shape.iter().map(|dim| self.number(&dim.number)).collect();
                return format!("{op}({x}, {}, [{}])", self.path(&path), sizes.join(", "));
            }
        }
        if sign == "+" || sign == "-" {
            let left = self.value(left);
            let right = if sign == "-" { self.factor(Some(right), false) } else { self.factor(Some(right), false) };
            return format!("{left} {sign} {right}");
        }
        let left = self.factor(Some(left), false);
        let right = self.factor(Some(right), true);
        format!("{left} {sign} {right}")
    }

    fn with_number(&mut self, term: &Term, sign: &str) -> String {
        let x = if sign == "+" { self.operand(term, 0) } else { self.factor(term.inputs.first().copied(), false) };
        let number = self.attribute(term, "s");
        if sign == "+" {
            return match number.strip_prefix('-') { Some(positive) => format!("{x} - {positive}"), None => format!("{x} + {number}") };
        }
        let compound = matches!(term.attribute("s"), Some(Number::Apply(..)));
        if compound { format!("{x} {sign} ({number})") } else { format!("{x} {sign} {number}") }
    }

    fn choose(&mut self, term: &Term) -> String {
        let mut text = format!("choose({}, {}", self.operand(term, 0), self.attribute(term, "k"));
        for name in ["groups", "keep", "by", "mask"] {
            if term.attribute(name).is_some() { text.push_str(&format!(", {name}={}", self.attribute(term, name))); }
        }
        text.push(')');
        text
    }

    fn reduced(&mut self, term: &Term, op: &str, _: &str) -> String {
        let x = self.operand(term, 0);
        let heads = self.writer.graph.term(term.inputs[0]).shape.len() > 1;
        match (op, heads) {
            ("total", true) => format!("total({x}, of='heads')"),
            _ => format!("{op}({x})"),
        }
    }

    fn experts(&mut self, term: &Term) -> String {
        let operands: Vec<String> = (0..3).map(|place| self.operand(term, place)).collect();
        let path = term.word("path").unwrap_or_default().to_owned();
        let path = self.path(&path);
        let act = self.act_name(term.word("act").unwrap_or("silu"));
        let mut text = format!("experts({}, {path}, {}, {}, {act}", operands.join(", "), self.attribute(term, "n"), self.attribute(term, "ffn"));
        for name in ["form", "bias", "sum", "weigh", "limit", "alpha"] {
            if term.attribute(name).is_some() { text.push_str(&format!(", {name}={}", self.attribute(term, name))); }
        }
        text.push(')');
        text
    }

    fn clamp(&mut self, term: &Term) -> String {
        let mut text = format!("clamp({}", self.operand(term, 0));
        for name in ["lo", "hi"] {
            if term.attribute(name).is_some() { text.push_str(&format!(", {name}={}", self.attribute(term, name))); }
        }
        text.push(')');
        text
    }

    /// Activation by the config key that names it, or by its op.
    fn act_name(&self, op: &str) -> String {
        self.writer.activations.iter().find(|(_, known)| known == op).map_or_else(|| format!("'{op}'"), |(key, _)| self.writer.names.name(key))
    }

    fn activation(&mut self, term: &Term) -> String {
        let x = self.operand(term, 0);
        let key = self.writer.activations.iter().find(|(_, known)| *known == term.op);
        match key {
            Some((key, _)) => format!("act({x}, {})", self.writer.names.name(key)),
            None => format!("{}({x})", term.op),
        }
    }
}

/// A path without the prefix of the wrapper around a text model.
pub fn text_model(path: &str) -> String {
    for (wrapped, bare) in [("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""), ("model.text_model.", "model."), ("thinker.", "")] {
        if let Some(tail) = path.strip_prefix(wrapped) {
            return format!("{bare}{tail}");
        }
    }
    path.to_owned()
}
