//! The settings of the written file: dims and rotary tables as reads of config keys.

use std::collections::BTreeSet;

use registry::diag::Finding;
use registry::spec::{DimSource, RopeDecl, Spec};
use registry::syntax::{Expr, ExprKind};

use crate::python::{expression, quoted};
use crate::scalars::Scalars;
use crate::symbol;
use crate::value::CodeLine;

/// The key of the context of which a scaled table knows.
const ORIGINAL: &str = "original_max_position_embeddings";

/// Settings under way.
struct Settings<'s, 'w> {
    spec: &'s Spec,
    scalars: &'w mut Scalars<'s>,
    lines: Vec<CodeLine>,
    done: BTreeSet<String>,
}

fn null(at: &Expr) -> Expr {
    symbol::with(at, ExprKind::Null)
}

/// True if a default may fail where a key is given, or is long.
fn is_partial(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Comprehension { .. } | ExprKind::Index(..) | ExprKind::Slice(..) => true,
        ExprKind::Call(name, args) => {
            name.name == "len" || args.iter().any(|arg| is_partial(&arg.value))
        }
        ExprKind::Binary(_, a, b) => is_partial(a) || is_partial(b),
        ExprKind::If { then, condition, otherwise } => {
            [then, condition, otherwise].into_iter().any(|part| is_partial(part))
        }
        _ => false,
    }
}

/// Returns the name of a rotary table in the code.
pub(crate) fn table_name(spec: &Spec, table: &str) -> String {
    if spec.rope.len() == 1 { "rope".to_owned() } else { format!("rope_{table}") }
}

/// Writes the settings of these names, each after those that it is made of.
pub(crate) fn written<'s>(
    spec: &'s Spec,
    scalars: &mut Scalars<'s>,
    names: &BTreeSet<String>,
    tables: &BTreeSet<String>,
    words: &BTreeSet<String>,
) -> Result<(Vec<CodeLine>, Vec<TableCode>), Finding> {
    let mut settings = Settings { spec, scalars, lines: Vec::new(), done: BTreeSet::new() };
    for name in spec.dims.keys().filter(|name| names.contains(*name)) {
        settings.dim(name, 0)?;
    }
    let mut codes = Vec::new();
    for (name, decl) in &spec.rope {
        if tables.contains(&table_name(spec, name)) {
            codes.push(settings.table(decl, words)?);
        }
    }
    Ok((settings.lines, codes))
}

/// The construction of a rotary table.
#[derive(Debug, Clone)]
pub(crate) struct TableCode {
    pub(crate) name: String,
    pub(crate) made: String,
}

impl Settings<'_, '_> {
    /// Writes a dim, after the dims that it is made of.
    fn dim(&mut self, name: &str, depth: usize) -> Result<(), Finding> {
        if !self.done.insert(name.to_owned()) || depth > 64 {
            return Ok(());
        }
        let Some(dim) = self.spec.dims.get(name) else { return Ok(()) };
        let lazy = dim.sources.len() > 1
            && matches!(dim.sources.last(), Some(DimSource::Compute(expr)) if is_partial(expr));
        let (text, default) = match (lazy, dim.sources.split_last()) {
            (true, Some((DimSource::Compute(expr), keys))) => {
                let keys: Vec<DimSource> =
                    keys.iter().cloned().chain([DimSource::Compute(null(expr))]).collect();
                (self.sources(&keys, depth)?, Some(self.expr(expr, depth)?))
            }
            _ => (self.sources(&dim.sources, depth)?, None),
        };
        for comment in crate::comments::above(&dim.name.at) {
            self.lines.push(CodeLine::Text(format!("# {comment}")));
        }
        self.lines.push(CodeLine::Text(format!("self.{name} = {text}")));
        if let Some(default) = default {
            let line = CodeLine::Text(format!("self.{name} = {default}"));
            self.lines.push(CodeLine::If(format!("self.{name} is None"), vec![line], Vec::new()));
        }
        Ok(())
    }

    /// Returns an expression over config keys, after writing the dims that it reads.
    fn expr(&mut self, expr: &Expr, depth: usize) -> Result<String, Finding> {
        let expr = self.scalars.resolve(expr, &mut Vec::new(), 0)?;
        let mut needs = Vec::new();
        symbol::names(&expr, &mut |name| needs.extend(name.strip_prefix("D:").map(str::to_owned)));
        for name in needs {
            self.dim(&name, depth + 1)?;
        }
        Ok(expression(&expr).0)
    }

    fn sources(&mut self, sources: &[DimSource], depth: usize) -> Result<String, Finding> {
        let mut keys = Vec::new();
        let mut default = None;
        for source in sources {
            match source {
                DimSource::Key(key) => keys.push(quoted(&key.name)),
                DimSource::Compute(expr) if keys.is_empty() => return self.expr(expr, depth),
                DimSource::Compute(expr) => {
                    default = (expr.kind != ExprKind::Null)
                        .then(|| self.expr(expr, depth))
                        .transpose()?;
                }
            }
        }
        let has_default = sources.iter().any(|source| matches!(source, DimSource::Compute(_)));
        Ok(match (keys.as_slice(), default) {
            ([key], None) if !has_default && !key.contains('.') => format!("config[{key}]"),
            (keys, None) => format!("read(config, {})", keys.join(", ")),
            (keys, Some(default)) => {
                format!("read(config, {}, default={default})", keys.join(", "))
            }
        })
    }

    /// Writes the numbers of a rotary table, and returns its construction.
    fn table(&mut self, decl: &RopeDecl, words: &BTreeSet<String>) -> Result<TableCode, Finding> {
        let name = table_name(self.spec, &decl.name.name);
        let theta = self.sources(&decl.theta, 0)?;
        self.lines.push(CodeLine::Text(format!("self.{name}_theta = {theta}")));
        let mut made = vec![format!("config.{name}_theta")];
        let nothing = matches!(decl.parameters.as_slice(), [DimSource::Compute(expr)] if expr.kind == ExprKind::Null);
        if !decl.parameters.is_empty() && !nothing {
            let parameters = self.sources(&decl.parameters, 0)?;
            self.lines.push(CodeLine::Text(format!("self.{name}_parameters = {parameters}")));
            made.push(format!("config.{name}_parameters"));
        }
        if let Some(partial) = &decl.partial {
            let text = self.expr(partial, 0)?;
            if text == "1.0" {
                made.push("partial=1.0".to_owned());
            } else {
                self.lines.push(CodeLine::Text(format!("self.{name}_partial = {text}")));
                made.push(format!("partial=config.{name}_partial"));
            }
        }
        if let Some(context) = &decl.context {
            let text = self.expr(context, 0)?;
            made.push(format!("context={text}").replace("«D:", "config.").replace('»', ""));
        }
        let nested = decl
            .parameters
            .iter()
            .any(|source| matches!(source, DimSource::Key(key) if key.name.contains('.')));
        let scaled = ["yarn", "longrope", "su", "llama3"].iter().any(|kind| words.contains(*kind));
        if words.contains(ORIGINAL) && scaled && !nested {
            let read = format!("self.{name}_original = read(config, {})", quoted(ORIGINAL));
            self.lines.push(CodeLine::Text(read));
            made.push(format!("original=config.{name}_original"));
        }
        if let Some(behind) = &decl.behind {
            let text = self.expr(behind, 0)?;
            made.push(format!("behind={text}").replace("«D:", "config.").replace('»', ""));
        }
        if decl.long_by_scale {
            made.push("long_by_scale=True".to_owned());
        }
        let dim = self.expr(&decl.dim, 0)?.replace("«D:", "config.").replace('»', "");
        Ok(TableCode { name, made: format!("Rotary({dim}, {})", made.join(", ")) })
    }
}
