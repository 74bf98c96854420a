//! Attention and states in programs.

use std::fmt::Write as _;

use super::Program;
use crate::graph::{Id, Term};
use crate::number::Number;

impl Program<'_, '_> {
    /// Name of the state of this kind and shape; the first has the usual name.
    pub(super) fn state(&self, usual: &str, declaration: &str, term: &Term) -> String {
        let place = match term.attribute("layer") {
            Some(Number::Int(layer)) if self.writer.cache_layers.len() > 1 => {
                self.writer.cache_layers.iter().position(|known| known == layer)
            }
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

    /// Name of a state that no other step of the layer shares.
    pub(super) fn single_state(&self, usual: &str, declaration: &str, term: &Term) -> String {
        let place = term.owner.strip_prefix(&self.writer.prefix).unwrap_or_default();
        let place = place.split('.').find(|part| !part.is_empty()).unwrap_or("row");
        let name = format!("{usual}_{place}");
        let mut states = self.writer.states.borrow_mut();
        if !states.iter().any(|(known, _)| *known == name) {
            states.push((name.clone(), declaration.to_owned()));
        }
        name
    }

    pub(super) fn row(&self, id: Id) -> String {
        let sizes: Vec<String> =
            self.writer.graph.term(id).shape.iter().map(|dim| self.number(&dim.number)).collect();
        format!("[{}]", sizes.join(", "))
    }

    /// The layer whose keys attention reads, if it is an earlier one.
    pub(super) fn borrowed_layer(&self, term: &Term) -> Option<i64> {
        match (term.attribute("layer"), self.writer.layer) {
            (Some(Number::Int(layer)), Some(own))
                if *layer < own && !self.writer.cache_layers.contains(layer) =>
            {
                Some(*layer)
            }
            _ => None,
        }
    }

    pub(super) fn attend(&mut self, term: &Term) -> String {
        let declaration = format!(
            "kind: attention, k: {}, v: {}, dtype: activation",
            self.row(term.inputs[1]),
            self.row(term.inputs[2])
        );
        if let Some(layer) = self.borrowed_layer(term) {
            let q = self.operand(term, 0);
            let mut text = format!(
                "attend_to({q}, {}, {layer}, {}",
                self.state("kv", &declaration, term),
                self.scale(term)
            );
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
        let mut text = format!(
            "attend({}, {}, {}",
            operands.join(", "),
            self.state("kv", &declaration, term),
            self.scale(term)
        );
        self.attention_options(term, &mut text);
        self.as_heads(term, text)
    }

    pub(super) fn as_heads(&self, term: &Term, text: String) -> String {
        if term.attribute("flat").is_some() {
            text
        } else {
            format!("heads({text}, {})", self.number(&term.shape[0].number))
        }
    }

    pub(super) fn scale(&self, term: &Term) -> String {
        match (term.attribute("scale"), term.attribute("divided")) {
            (Some(scale), _) => self.number(scale),
            (None, Some(divisor)) => {
                self.number(&Number::apply("/", vec![Number::Real(1.0), divisor.clone()]))
            }
            _ => "1.0".to_owned(),
        }
    }

    /// The window that a mask leaves open.
    fn mask_options(&self, term: &Term, text: &mut String) {
        match term.attribute("mask") {
            Some(Number::Apply(kind, sizes)) if kind == "window" => {
                let _ = write!(text, ", window={}", self.number(&sizes[0]));
            }
            Some(Number::Word(kind)) => match kind.as_str() {
                "create_sliding_window_causal_mask" => {
                    let _ = write!(text, ", window={}", self.writer.names.name("sliding_window"));
                }
                "create_chunked_causal_mask" => {
                    let window = self.writer.names.name("attention_chunk_size");
                    let _ = write!(text, ", window={window}, chunked=true");
                }
                "unknown" => {
                    self.fault(term, "a mask made with a function that is not known");
                }
                _ => {}
            },
            _ => {}
        }
    }

    pub(super) fn attention_options(&mut self, term: &Term, text: &mut String) {
        self.mask_options(term, text);
        if let Some(Number::Int(at)) = term.attribute("selected_at") {
            let selected = self.operand(term, *at as usize + 1);
            let _ = write!(text, ", selected={selected}");
        }
        if let Some(Number::Int(at)) = term.attribute("relative_at") {
            let numbers = self.operand(term, *at as usize + 1);
            let _ = write!(text, ", relative={numbers}");
        }
        if let Some(cap) = term.attribute("softcap") {
            let _ = write!(text, ", softcap={}", self.number(cap));
        }
        if let Some(Number::Int(at)) = term.attribute("sinks") {
            let sinks = self.tensor(term, *at as usize + 1);
            let _ = write!(text, ", sinks={sinks}");
            if term.word("sink_form").is_some() {
                text.push_str(", sink_form='gate'");
            }
        }
        if let Some(Number::Int(at)) = term.attribute("query_sinks") {
            let sinks = self.operand(term, *at as usize + 1);
            let _ = write!(text, ", query_sinks={sinks}");
        }
        match term.word("soft") {
            Some("unrounded") => text.push_str(", softmax='unrounded'"),
            Some("activation") if term.attribute("highest").is_some() => {
                text.push_str(", softmax='activation'");
            }
            _ => {}
        }
        if let Some(rounding) = term.word("scores").filter(|rounding| *rounding != "rounded") {
            let _ = write!(text, ", scores='{rounding}'");
        }
        text.push(')');
    }

    pub(super) fn latent(&mut self, term: &Term) -> String {
        let mut operands = Vec::new();
        for (place, name) in ["q", "c", "r"].iter().enumerate() {
            let text = self.operand(term, place);
            let free = !self.taken.iter().any(|taken| taken == name);
            if text.len() < 24 || !free {
                operands.push(text);
                continue;
            }
            self.lines.push(format!("{name} = {text}"));
            self.taken.push((*name).to_owned());
            self.bound.insert(term.inputs[place], (*name).to_owned());
            operands.push((*name).to_owned());
        }
        let module = self.module(term.inputs[3], term);
        let size =
            |place: usize| self.number(&self.writer.graph.term(term.inputs[place]).width().number);
        let state = self.state(
            "latent",
            &format!("kind: latent, k: [1, {}], v: [1, {}], dtype: activation", size(1), size(2)),
            term,
        );
        let mut text = format!(
            "latent_attend({}, {module}, {state}, {}, {}",
            operands.join(", "),
            self.attribute(term, "scale"),
            self.attribute(term, "v_dim")
        );
        if let Some(Number::Int(at)) = term.attribute("selected_at") {
            let selected = self.operand(term, *at as usize + 1);
            let _ = write!(text, ", selected={selected}");
        }
        self.mask_options(term, &mut text);
        if let Some(Number::Int(at)) = term.attribute("sinks") {
            let sinks = self.tensor(term, *at as usize + 1);
            let _ = write!(text, ", sinks={sinks}");
        }
        text.push(')');
        if term.attribute("flat").is_some() {
            text
        } else {
            format!("heads({text}, {})", self.number(&term.shape[0].number))
        }
    }
}
