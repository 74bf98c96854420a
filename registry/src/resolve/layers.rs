//! The model's program and its layers.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use crate::diag::{Finding, Span};
use crate::eval::{self, EvalError, expected};
use crate::graph::ValueId;
use crate::image::ImageLayout;
use crate::scalar::Scalar;
use crate::spec::{LayerScalarDecl, LayersDecl};
use crate::suggest;
use crate::syntax::{Expr, Ident, Program};

use super::scope::{Binding, Scope};
use super::{LayerScalars, MAX_LAYERS, Resolver};

/// The properties that set one layer apart from the others.
pub(super) struct LayerContext<'d> {
    /// The values known of the layer before its kind is.
    pub(super) each: LayerScalars,
    /// Its number in the graph.
    pub(super) layer: usize,
    pub(super) prefix: &'d Ident,
    pub(super) kind: Option<&'d Expr>,
    /// Scalars that stand in place of those of `layers: each:`.
    pub(super) instead: Option<&'d IndexMap<String, LayerScalarDecl>>,
}

impl Resolver<'_> {
    /// Returns the inputs of the program: tokens, and the patches of an encoder.
    fn inputs(&mut self) -> BTreeMap<String, Binding> {
        let mut locals = BTreeMap::from([("tokens".to_owned(), Binding::Value(ValueId(0)))]);
        if !self.spec.encodes.is_empty() {
            let layout = self.image_layout();
            let layout = self.report.ok_or_report(layout);
            let patches = match (self.required("patch"), layout) {
                (Some(width), Some(layout)) => {
                    Binding::Value(self.builder.feed_patches(width, layout))
                }
                _ => Binding::Poison,
            };
            locals.insert("patches".to_owned(), patches);
        }
        locals
    }

    /// Returns the rows that an image becomes.
    fn image_layout(&mut self) -> Result<ImageLayout, EvalError> {
        let decl = &self.spec.image;
        let plain = ImageLayout::default();
        Ok(ImageLayout {
            side: self.image_size(decl.side.as_ref(), 1)?,
            block: self.image_size(decl.block.as_ref(), 1)?.unwrap_or(plain.block),
            window: self.image_size(decl.window.as_ref(), 1)?,
            skip: self.image_size(decl.skip.as_ref(), 0)?.unwrap_or(plain.skip),
            in_blocks: decl.order.as_ref().is_some_and(|word| word.name == "blocks"),
        })
    }

    fn image_size(&self, expr: Option<&Expr>, least: usize) -> Result<Option<usize>, EvalError> {
        const MOST: usize = 1 << 16;
        let Some(expr) = expr else { return Ok(None) };
        let each = LayerScalars::new();
        let scope = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
        let value = eval::eval_owned(expr, &self.env(&scope))?;
        let size = value.as_usize().filter(|size| (least..=MOST).contains(size));
        size.map(Some).ok_or_else(|| {
            Finding::error(&expr.at, "this is no number of pixels, patches or rows")
                .label(expected(&format!("{least} to {MOST}"), &value))
                .into()
        })
    }

    /// Runs the program from tokens to logits, or from patches to the rows of an encoder.
    pub(super) fn model(&mut self, vocab: Option<usize>) {
        let each = LayerScalars::new();
        let locals = self.inputs();
        let scope = Scope { locals, each: &each, prefix: "" };
        let spec = self.spec;
        let result = self.program(&spec.model, scope);
        if let Some(id) = self.only_value(&result, &spec.model.at, "`model`") {
            let shape = &self.builder.value(id).shape;
            if let Some(vocab) = vocab
                && *shape != [vocab]
            {
                let at = spec.model.result.first().map_or(&spec.model.at, |expr| &expr.at);
                let shown = crate::graph::show(shape);
                let rows =
                    if spec.encodes.is_empty() { "logits" } else { "rows of `output` numbers" };
                self.report.add(
                    Finding::error(at, format!("`model` does not give {rows}"))
                        .label(format!("this is {shown}, expected [{vocab}]")),
                );
            }
            self.builder.set_output(id);
        }
        if let Some(layers) = &spec.layers
            && !self.report.failed
            && self.builder.layers() == 0
        {
            self.report.add(Finding::error(&layers.at, "`model` never calls `layers`"));
        }
    }

    pub(super) fn only_value(
        &mut self,
        results: &[Binding],
        at: &Span,
        what: &str,
    ) -> Option<ValueId> {
        match results {
            [Binding::Value(id)] => Some(*id),
            [Binding::Poison] => None,
            [_] => {
                self.report.add(
                    Finding::error(at, format!("{what} gives no value"))
                        .label("the result is a number or a path"),
                );
                None
            }
            _ => {
                self.report.add(Finding::error(
                    at,
                    format!("{what} gives {} results, expected one value", results.len()),
                ));
                None
            }
        }
    }

    /// Resolves the call `layers(x)`; every layer sees `others` under their names.
    pub(super) fn layers(
        &mut self,
        x: ValueId,
        values: &BTreeMap<String, Binding>,
        at: &Span,
        scope: &Scope<'_>,
    ) -> Result<Binding, EvalError> {
        let spec = self.spec;
        if !scope.prefix.is_empty() || self.builder.layer().is_some() {
            return Err(Finding::error(at, "`layers` can only be called in `model`").into());
        }
        let Some(decl) = &spec.layers else {
            return Err(Finding::error(at, "the spec has no section `layers`").into());
        };
        if self.builder.layers() > 0 {
            return Err(Finding::error(at, "`layers` is called a second time").into());
        }
        let count = self.layer_count(decl)?;
        let beside = self.beside(decl, count)?;
        self.builder.set_beside(beside);
        let mut x = Binding::Value(x);
        let mut carried = values.clone();
        for i in 0..count {
            let block = LayerContext {
                each: LayerScalars::from([("i".to_owned(), Some(Scalar::Int(i as i64)))]),
                layer: i,
                prefix: &decl.prefix,
                kind: decl.kind.as_ref(),
                instead: None,
            };
            x = self.one_layer(decl, block, x, &mut carried);
        }
        let names = decl.carry.iter().map(|name| name.name.as_str());
        self.carried = names.filter_map(|name| carried.get(name).cloned()).collect();
        self.builder.set_head();
        Ok(x)
    }

    /// Returns the number of layers behind which a run may add rows.
    fn beside(&mut self, decl: &LayersDecl, layers: usize) -> Result<usize, EvalError> {
        let Some(beside) = &decl.beside else { return Ok(0) };
        let each = LayerScalars::new();
        let scope = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
        let value = eval::eval_owned(beside, &self.env(&scope))?;
        value.as_usize().filter(|number| *number <= layers).ok_or_else(|| {
            Finding::error(&beside.at, "this is no number of layers")
                .label(expected(&format!("0 to {layers}"), &value))
                .into()
        })
    }

    fn layer_count(&mut self, decl: &LayersDecl) -> Result<usize, EvalError> {
        let Some(count) = &decl.count else {
            return self
                .dims
                .count("layers", MAX_LAYERS)
                .map_err(EvalError::from)?
                .ok_or(EvalError::Reported);
        };
        let each = LayerScalars::new();
        let scope = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
        let value = eval::eval_owned(count, &self.env(&scope))?;
        match value.as_usize() {
            Some(n) if n > 0 && n <= MAX_LAYERS => Ok(n),
            _ => Err(Finding::error(&count.at, "the number of layers is out of range")
                .label(expected(&format!("1 to {MAX_LAYERS}"), &value))
                .into()),
        }
    }

    pub(super) fn one_layer(
        &mut self,
        decl: &LayersDecl,
        block: LayerContext<'_>,
        x: Binding,
        carried: &mut BTreeMap<String, Binding>,
    ) -> Binding {
        let mut each = block.each;
        let (kind, program) = match self.layer_program(decl, block.kind, &each) {
            Ok(kind_and_program) => kind_and_program,
            Err(fail) => {
                self.report.fail(fail);
                return Binding::Poison;
            }
        };
        each.insert("kind".to_owned(), Some(Scalar::Str(kind.clone())));
        let added = block.instead.into_iter().flatten();
        let added = added.filter(|(name, _)| !decl.each.contains_key(*name));
        for (name, scalar) in decl.each.iter().chain(added) {
            let instead = block.instead.and_then(|instead| instead.get(name));
            let scalar = instead.unwrap_or(scalar);
            let scope = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
            let value = eval::eval_owned(&scalar.value, &self.env(&scope));
            let value = value.map_err(|fail| self.report.fail(fail)).ok();
            each.insert(name.clone(), value);
        }
        let prefix = self.filled(block.prefix, &each);
        let mut locals = carried.clone();
        locals.insert("x".to_owned(), x);
        let scope = Scope { locals, each: &each, prefix: &prefix };
        let states = {
            let bare = Scope { locals: BTreeMap::new(), each: &each, prefix: "" };
            let env = super::scope::ProgramEnv {
                scope: &bare,
                dims: self.dims,
                config: self.config,
                fuel: self.fuel,
            };
            self.states(block.layer, &env)
        };
        let first = self.builder.nodes();
        self.builder.enter(block.layer, states);
        let mut results = self.program(program, scope);
        // A layer that gives `x` alone leaves what is carried as it is.
        if results.len() == 1 + decl.carry.len() {
            for (name, result) in decl.carry.iter().zip(results.split_off(1)) {
                let value = self.only_value(&[result], &program.at, &format!("`{}`", name.name));
                carried.insert(name.name.clone(), value.map_or(Binding::Poison, Binding::Value));
            }
        }
        let result = self.only_value(&results, &program.at, "a layer");
        self.builder.leave(&kind, &prefix, first, result);
        result.map_or(Binding::Poison, Binding::Value)
    }

    /// Returns a prefix with its holes filled.
    pub(super) fn filled(&mut self, template: &Ident, each: &LayerScalars) -> String {
        let mut prefix = template.name.clone();
        for (name, scalar) in each {
            let text = match scalar {
                Some(Scalar::Int(n)) => n.to_string(),
                Some(Scalar::Str(text)) => text.clone(),
                _ => continue,
            };
            prefix = prefix.replace(&format!("{{{name}}}"), &text);
        }
        if prefix == template.name || prefix.contains(['{', '}']) {
            self.report.add(
                Finding::error(
                    &template.at,
                    "the prefix of layers needs `{i}`, or names of `each` as its holes",
                )
                .help("for example `model.layers.{i}`"),
            );
        }
        prefix
    }

    /// Returns the kind of a layer, and the program of that kind.
    fn layer_program<'d>(
        &mut self,
        decl: &'d LayersDecl,
        kind: Option<&Expr>,
        each: &LayerScalars,
    ) -> Result<(String, &'d Program), EvalError> {
        let Some(kind) = kind else {
            // Without a kind there is one program; `*` of a parent names it too.
            let mut programs = decl.programs.iter();
            return match (programs.next(), programs.next()) {
                (Some((name, layer)), None) => {
                    let name = if name == "*" { "layer" } else { name };
                    Ok((name.to_owned(), &layer.program))
                }
                (None, _) => Err(Finding::error(&decl.at, "`layers` has no program").into()),
                _ => Err(Finding::error(&decl.at, "`layers` has several programs and no `kind`")
                    .help("say which layer runs which: `kind: layer_types[i]`")
                    .into()),
            };
        };
        let scope = Scope { locals: BTreeMap::new(), each, prefix: "" };
        let value = eval::eval_owned(kind, &self.env(&scope))?;
        let Scalar::Str(name) = value else {
            return Err(Finding::error(&kind.at, "the kind of a layer is a text")
                .label(expected("a text", &value))
                .into());
        };
        match decl.programs.get(&name).or_else(|| decl.programs.get("*")) {
            Some(layer) => Ok((name, &layer.program)),
            None if self.refused.contains(&name) => Err(EvalError::Reported),
            None => Err(self.unknown_kind(decl, &kind.at, &name).into()),
        }
    }

    fn unknown_kind(&self, decl: &LayersDecl, at: &Span, name: &str) -> Finding {
        let mut finding = Finding::error(at, format!("no program is for layers of kind `{name}`"));
        finding.help = suggest::help(name, decl.programs.keys().map(String::as_str));
        finding.label(format!("`{}` has layers of that kind", self.config.path()))
    }
}
