//! Head that predicts one token more: a graph of its own. Its inputs are tokens and the model's outputs for
//! the tokens before.
//!
//! The head is a model of its own ([decision 15](../../../docs/decisions/0015-draft-head-is-a-model.md)).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diag::{Finding, Span};
use crate::eval::{self, EvalError, expected};
use crate::gguf::Gguf;
use crate::graph::{Graph, ValueId};
use crate::model::{Model, Nextn};
use crate::ops;
use crate::rope::RopeTable;
use crate::scalar::Scalar;
use crate::spec::NextnDecl;
use crate::syntax::Program;

use super::gguf::HeadLayer;
use super::layers::LayerContext;
use super::scope::{Binding, Scope};
use super::{Builder, LayerScalars, Resolver, stored_dtypes};

/// The most tokens that any checkpoint looks ahead, many times over.
const MAX_COUNT: usize = 64;

/// The graphs of a head, before they are models.
pub(super) struct NextnGraphs {
    pub(super) from: String,
    pub(super) recycle: String,
    pub(super) graphs: Vec<Graph>,
    pub(super) places: Vec<HeadLayer>,
}

impl NextnGraphs {
    /// Returns a model of each graph, with what it shares with the model before it.
    pub(super) fn into_models(self, model: &Model, gguf: Option<Gguf>) -> Nextn {
        let layers = self
            .graphs
            .into_iter()
            .map(|graph| Arc::new(Model { graph, gguf: gguf.clone(), ..model.clone() }))
            .collect();
        Nextn { from: self.from, recycle: self.recycle, layers, gguf }
    }
}

impl Resolver<'_> {
    /// Resolves the head behind a model that has been resolved; none if the config has none.
    pub(super) fn nextn(
        &mut self,
        decl: &NextnDecl,
        vocab: Option<usize>,
        ropes: &[Option<RopeTable>],
    ) -> Option<NextnGraphs> {
        let count = self.nextn_count(decl);
        let count = self.report.ok_or_report(count).filter(|count| *count > 0)?;
        let from = &decl.from;
        let Some(shape) = self.builder.all_rows_up_to(&from.name) else {
            self.report.add(
                Finding::error(&from.at, format!("no module of `model` is `{}`", from.name))
                    .help("name the module whose output goes into the head: `model.norm`"),
            );
            return None;
        };
        let main = std::mem::replace(&mut self.builder, Builder::new(Vec::new(), Vec::new()));
        let mut graphs = Vec::new();
        let mut places = Vec::new();
        let mut recycle = None;
        for depth in 0..count {
            self.builder = Builder::new(ropes.to_vec(), stored_dtypes(self.spec));
            let h = self.builder.feed("h", shape.clone(), usize::from(decl.pos.name == "token"));
            if let Some((tap, place)) = self.head(decl, depth, h, vocab) {
                recycle = recycle.or(tap);
                places.push(place);
            }
            let done = std::mem::replace(&mut self.builder, Builder::new(Vec::new(), Vec::new()));
            graphs.push(done.finish().0);
        }
        self.builder = main;
        Some(NextnGraphs { from: from.name.clone(), recycle: recycle?, graphs, places })
    }

    fn nextn_count(&mut self, decl: &NextnDecl) -> Result<usize, EvalError> {
        let Some(expr) = &decl.count else { return Ok(1) };
        let each = LayerScalars::new();
        let scope = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
        let value = eval::eval_owned(expr, &self.env(&scope))?;
        match value.as_usize() {
            Some(count) if count <= MAX_COUNT => Ok(count),
            // A config that says null has none.
            None if value == Scalar::Null => Ok(0),
            _ => Err(Finding::error(&expr.at, "the number of layers of `nextn` is out of range")
                .label(expected(&format!("0 to {MAX_COUNT}"), &value))
                .into()),
        }
    }

    /// Resolves one layer of the head. Returns the tap that is fed for the draft after the next, and the
    /// place of the layer.
    fn head(
        &mut self,
        decl: &NextnDecl,
        depth: usize,
        h: ValueId,
        vocab: Option<usize>,
    ) -> Option<(Option<String>, HeadLayer)> {
        let layers = self.spec.layers.as_ref()?;
        let behind = self.dims.count("layers", super::MAX_LAYERS).ok().flatten()?;
        let each = LayerScalars::from([
            ("i".to_owned(), Some(Scalar::Int((behind + depth) as i64))),
            ("depth".to_owned(), Some(Scalar::Int(depth as i64))),
        ]);
        // The modules of the head itself may be shared by all its layers.
        let holes = decl.prefix.name.contains('{');
        let prefix =
            if holes { self.filled(&decl.prefix, &each) } else { decl.prefix.name.clone() };
        let mut e = self.run(&decl.embed, "tokens", ValueId(0), "", &each)?;
        if decl.first.name == "zeroed" {
            e = self.op(ops::ZERO_FIRST, &[e], &decl.first.at)?;
        }
        let e = self.run(&decl.norm_e, "e", e, &prefix, &each)?;
        let h = self.run(&decl.norm_h, "h", h, &prefix, &each)?;
        let parts: Vec<ValueId> =
            decl.concat.iter().map(|word| if word.name == "e" { e } else { h }).collect();
        let both = self.op(ops::CONCAT, &parts, &decl.concat.first()?.at)?;
        let x = self.run(&decl.proj, "x", both, &prefix, &each)?;
        let block = LayerContext {
            each: each.clone(),
            layer: depth,
            prefix: decl.block.as_ref().unwrap_or(&decl.prefix),
            kind: decl.kind.as_ref().or(layers.kind.as_ref()),
            instead: Some(&decl.each),
        };
        let place = self.place(decl, behind + depth, &prefix, &each);
        let x = self.one_layer(layers, block, Binding::Value(x), &mut BTreeMap::new());
        let Binding::Value(x) = x else { return None };
        self.builder.set_head();
        let y = self.run(&decl.out_norm, "x", x, &prefix, &each)?;
        let logits = self.run(&decl.head, "x", y, "", &each)?;
        if vocab.is_some_and(|vocab| self.builder.value(logits).shape != [vocab]) {
            let shape = crate::graph::show(&self.builder.value(logits).shape);
            self.report.add(
                Finding::error(&decl.head.at, "`head` of `nextn` does not give logits")
                    .label(format!("this is {shape}")),
            );
        }
        self.builder.set_output(logits);
        let next = if decl.recycle.name == "pre" { x } else { y };
        let tap = self.builder.value(next).tap.clone();
        if tap.is_none() {
            self.report.add(Finding::error(
                &decl.recycle.at,
                "what is handed to the next draft is no module's output",
            ));
        }
        Some((tap, place))
    }

    /// Runs a program of the head, whose one parameter is `name`, on a value.
    fn run(
        &mut self,
        program: &Program,
        name: &str,
        value: ValueId,
        prefix: &str,
        each: &LayerScalars,
    ) -> Option<ValueId> {
        let locals = BTreeMap::from([(name.to_owned(), Binding::Value(value))]);
        let results = self.program(program, Scope { locals, each, prefix });
        self.only_value(&results, &program.at, "a program of `nextn`")
    }

    fn place(
        &mut self,
        decl: &NextnDecl,
        index: usize,
        prefix: &str,
        each: &LayerScalars,
    ) -> HeadLayer {
        let block = match (&decl.block, self.spec.layers.as_ref()) {
            (Some(block), Some(layers)) => {
                (self.filled(block, each), self.filled(&layers.prefix, each))
            }
            _ => (prefix.to_owned(), prefix.to_owned()),
        };
        HeadLayer { index, prefix: prefix.to_owned(), block }
    }

    /// Adds a node of an op that takes values alone.
    fn op(&mut self, op: &str, values: &[ValueId], at: &Span) -> Option<ValueId> {
        let ops = self.ops;
        let rule = ops.get(op)?;
        let each = LayerScalars::new();
        let scope = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
        let given = values.iter().map(|id| (None, Binding::Value(*id), at)).collect();
        let args = self.bind(rule, given, at, &scope);
        let result = args.and_then(|args| self.apply(op, args, at));
        match self.report.ok_or_report(result)? {
            Binding::Value(id) => Some(id),
            _ => None,
        }
    }
}
