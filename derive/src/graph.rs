//! Terms: what a row goes through, in ops of the spec language and in smaller steps that rules join to ops.

use std::collections::BTreeMap;

use crate::number::Number;
use crate::rules;

/// Place of a term in its graph.
pub type Id = usize;

/// Kind of numbers of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The dtype of the run, to which each step rounds.
    Activation,
    /// f32, whatever the run's dtype.
    Float,
    /// Whole numbers.
    Int,
    /// Truth values.
    Bool,
}

impl Kind {
    /// Reads the name of a torch dtype.
    pub fn of(dtype: &str) -> Self {
        match dtype {
            "bfloat16" | "float16" => Self::Activation,
            "float32" | "float64" | "complex64" => Self::Float,
            "bool" => Self::Bool,
            _ => Self::Int,
        }
    }
}

/// Size of an axis, and the expression of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Dim {
    /// Size in the record.
    pub size: usize,
    /// Expression over the config; the size itself where none is known.
    pub number: Number,
}

impl Dim {
    /// A size without an expression.
    pub fn plain(size: usize) -> Self {
        Self { size, number: Number::Int(size as i64) }
    }

    /// The product of sizes.
    pub fn product(dims: &[Self]) -> Self {
        dims.iter().skip(1).fold(
            dims.first().cloned().unwrap_or_else(|| Self::plain(1)),
            |product, dim| Self {
                size: product.size * dim.size,
                number: Number::apply("*", vec![product.number, dim.number.clone()]),
            },
        )
    }
}

/// One step, and where the class computes it.
#[derive(Debug, Clone)]
pub struct Term {
    /// Name of the op or step.
    pub op: String,
    /// Terms that it reads.
    pub inputs: Vec<Id>,
    /// Its arguments by name.
    pub attributes: Vec<(String, Number)>,
    /// Shape of a row.
    pub shape: Vec<Dim>,
    /// Kind of its numbers.
    pub kind: Kind,
    /// Module whose forward computes it.
    pub owner: String,
    /// File and line.
    pub at: String,
}

impl Term {
    /// Returns an argument.
    pub fn attribute(&self, name: &str) -> Option<&Number> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns an argument that is a word.
    pub fn word(&self, name: &str) -> Option<&str> {
        match self.attribute(name) {
            Some(Number::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// Returns the last axis.
    pub fn width(&self) -> Dim {
        self.shape.last().cloned().unwrap_or_else(|| Dim::plain(1))
    }

    /// Replaces or adds an argument.
    pub fn set(&mut self, name: &str, value: Number) {
        self.attributes.retain(|(key, _)| key != name);
        self.attributes.push((name.to_owned(), value));
    }
}

/// All terms of a record; equal terms exist once.
#[derive(Debug, Default)]
pub struct Graph {
    /// Terms in order of their making.
    pub terms: Vec<Term>,
    known: BTreeMap<String, Id>,
    /// Module whose forward is read now.
    pub owner: String,
    /// Place in the class that is read now.
    pub at: String,
}

impl Graph {
    /// Returns a term.
    pub fn term(&self, id: Id) -> &Term {
        &self.terms[id]
    }

    /// Begins a term.
    pub fn step(&self, op: &str, inputs: &[Id], shape: Vec<Dim>, kind: Kind) -> Term {
        Term {
            op: op.to_owned(),
            inputs: inputs.to_vec(),
            attributes: Vec::new(),
            shape,
            kind,
            owner: self.owner.clone(),
            at: self.at.clone(),
        }
    }

    /// Adds a term, joined with what it reads where a rule knows their sum.
    pub fn add(&mut self, term: Term) -> Id {
        match rules::join(self, &term) {
            rules::Joined::Known(id) => id,
            rules::Joined::Term(joined) => self.add(joined),
            rules::Joined::None => self.intern(term),
        }
    }

    /// Adds a term as it is.
    pub fn intern(&mut self, term: Term) -> Id {
        let key = format!(
            "{} {:?} {:?} {:?} {:?}",
            term.op,
            term.inputs,
            term.attributes,
            term.kind,
            term.shape.iter().map(|dim| dim.size).collect::<Vec<_>>()
        );
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        self.terms.push(term);
        self.known.insert(key, self.terms.len() - 1);
        self.terms.len() - 1
    }

    /// Adds a step of one input that keeps shape and kind.
    pub fn unary(&mut self, op: &str, input: Id) -> Id {
        let source = self.term(input);
        let term = self.step(op, &[input], source.shape.clone(), source.kind);
        self.add(term)
    }

    /// Returns the name of a weight, if a term is one, whatever its cast.
    pub fn weight(&self, id: Id) -> Option<&str> {
        let term = self.term(self.weight_root(id));
        if term.op == "weight" { term.word("path") } else { None }
    }

    /// Is true for the positions, whatever is added to them.
    pub fn counts_positions(&self, id: Id) -> bool {
        let term = self.term(self.bare(id));
        term.op == "positions" || (term.op == "offset" && self.counts_positions(term.inputs[0]))
    }

    /// Returns what casts of any kind and axes of size 1 were put around.
    pub fn bare(&self, id: Id) -> Id {
        let term = self.term(id);
        if term.op == "with_ones" || term.op == "cast" { self.bare(term.inputs[0]) } else { id }
    }

    /// Returns what axes of size 1 were put around.
    pub fn weightless(&self, id: Id) -> Id {
        let term = self.term(id);
        if term.op == "with_ones" { self.weightless(term.inputs[0]) } else { id }
    }

    /// Returns what casts and axes of size 1 were put around.
    pub fn weight_root(&self, id: Id) -> Id {
        let term = self.term(id);
        match term.op.as_str() {
            "cast" | "with_ones" => self.weight_root(term.inputs[0]),
            "merge_axes" | "split_axis"
                if term.shape.iter().filter(|dim| dim.size > 1).count()
                    == self
                        .term(term.inputs[0])
                        .shape
                        .iter()
                        .filter(|dim| dim.size > 1)
                        .count() =>
            {
                self.weight_root(term.inputs[0])
            }
            _ => id,
        }
    }

    /// Returns what a cast, if a term is one and rounds nothing, reads.
    pub fn uncast(&self, id: Id) -> Id {
        let term = self.term(id);
        let rounds = term.op == "cast"
            && term.kind == Kind::Activation
            && self.term(term.inputs[0]).kind == Kind::Float;
        if term.op == "cast" && !rounds { self.uncast(term.inputs[0]) } else { id }
    }

    /// Returns a term if its op has this name.
    pub fn is(&self, id: Id, op: &str) -> Option<&Term> {
        let term = self.term(id);
        (term.op == op).then_some(term)
    }

    /// Returns the tree of a term as text, to a depth.
    pub fn tree(&self, id: Id, depth: usize) -> String {
        let term = self.term(id);
        if term.op == "weight" {
            return term
                .word("path")
                .unwrap_or_default()
                .rsplit('.')
                .take(2)
                .collect::<Vec<_>>()
                .join("<");
        }
        let attributes: Vec<String> = term
            .attributes
            .iter()
            .filter(|(key, _)| key != "path" && key != "reason")
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let shape: Vec<usize> = term.shape.iter().map(|dim| dim.size).collect();
        let inputs: Vec<String> = if depth == 0 {
            vec!["..".to_owned()]
        } else {
            term.inputs.iter().map(|&input| self.tree(input, depth - 1)).collect()
        };
        let kind = match term.kind {
            Kind::Activation => "",
            Kind::Float => ":f",
            Kind::Int => ":i",
            Kind::Bool => ":b",
        };
        format!("{}{kind}{shape:?}{{{}}}({})", term.op, attributes.join(" "), inputs.join(", "))
    }
}
