//! The scaling object of a config: typed access, and the defaults of each scheme.

use super::super::unknown_word::unknown_word;
use crate::diag::{Finding, Span};
use crate::eval::{Env, EvalError, expected};
use crate::scalar::Scalar;
use crate::spec::RopeDecl;

use super::formulas::Yarn;

/// Keys that some scheme reads, or that are safe to pass over.
const KNOWN: &[&str] = &[
    "mrope_interleaved",
    "mrope_section",
    "max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "short_mscale",
    "truncate",
    "type",
];

/// Keys that no scheme here reads and other programs do.
const FOREIGN: &[&str] = &["attn_factor", "extrapolation_factor"];

pub(super) struct Parameters {
    pub(super) entries: Vec<(String, Scalar)>,
    /// The key of the config that holds them.
    pub(super) key: Option<String>,
    pub(super) at: Span,
    /// The config's path.
    pub(super) path: String,
}

impl Parameters {
    /// Returns an entry that is not null.
    pub(super) fn get(&self, name: &str) -> Option<&Scalar> {
        self.entries
            .iter()
            .find(|(key, value)| key == name && *value != Scalar::Null)
            .map(|(_, value)| value)
    }

    /// Returns every parameter by its name: given values, and null for known parameters that are not given.
    /// All numbers are floats, however they are written.
    pub(super) fn all(&self) -> Vec<(String, Scalar)> {
        fn floats(value: &Scalar) -> Scalar {
            match value {
                Scalar::Int(n) => Scalar::Float(*n as f64),
                Scalar::List(items) => Scalar::List(items.iter().map(floats).collect()),
                other => other.clone(),
            }
        }
        let given = self.entries.iter().map(|(key, value)| (key.clone(), floats(value)));
        let lacking = KNOWN.iter().chain(FOREIGN).filter(|key| self.get(key).is_none());
        given
            .filter(|(_, value)| *value != Scalar::Null)
            .chain(lacking.map(|key| ((*key).to_owned(), Scalar::Null)))
            .collect()
    }

    fn place(&self, name: &str) -> String {
        match &self.key {
            Some(key) => format!("`{}`: `{key}.{name}`", self.path),
            None => format!("`{name}` of the parameters"),
        }
    }

    fn wrong(&self, name: &str, form: &str, value: &Scalar) -> EvalError {
        Finding::error(&self.at, format!("{} is not {form}", self.place(name)))
            .label(expected(form, value))
            .into()
    }

    pub(super) fn kind(&self, env: &dyn Env) -> Result<&'static str, EvalError> {
        let entry = ["rope_type", "type"].iter().find_map(|name| Some((*name, self.get(name)?)));
        let Some((name, value)) = entry else { return Ok("default") };
        let Scalar::Str(word) = value else { return Err(self.wrong(name, "a text", value)) };
        let newer = super::OLDER.iter().find(|(older, _)| older == word);
        let word = newer.map_or(word.as_str(), |(_, newer)| newer);
        let known = super::KINDS.iter().copied();
        if let Some(kind) = known.clone().find(|kind| *kind == word) {
            return Ok(kind);
        }
        match &self.key {
            Some(key) => {
                let key = format!("{key}.{name}");
                Err(unknown_word(env.config(), &key, &[], word, known).into())
            }
            None => Err(self.wrong(name, "a rotary scheme", value)),
        }
    }

    /// Returns a warning for each entry that neither a scheme nor the spec reads.
    pub(super) fn unknown(&self, decl: &RopeDecl, env: &dyn Env) -> Vec<Finding> {
        let unknown = self.entries.iter().filter(|(key, value)| {
            *value != Scalar::Null && !KNOWN.contains(&key.as_str()) && !self.is_read(key, env)
        });
        unknown
            .map(|(key, _)| {
                Finding::error(
                    &decl.at,
                    format!("{} is not read by any rotary scheme", self.place(key)),
                )
                .warning()
                .help("if it changes the frequencies, this model needs more than the spec says")
            })
            .collect()
    }

    /// True if an expression has read an entry by its name in the config.
    fn is_read(&self, key: &str, env: &dyn Env) -> bool {
        self.key.as_ref().is_some_and(|outer| env.config().is_read(&format!("{outer}.{key}")))
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<f64>, EvalError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(self.wrong(name, "a number above 0", value)),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<f64, EvalError> {
        self.optional(name)?.ok_or_else(|| {
            Finding::error(&self.at, format!("{} is missing", self.place(name))).into()
        })
    }

    pub(super) fn list(&self, name: &str, length: usize) -> Result<Vec<f32>, EvalError> {
        let Some(value) = self.get(name) else {
            return Err(Finding::error(&self.at, format!("{} is missing", self.place(name))).into());
        };
        let form = format!("a list of {length} numbers");
        let Scalar::List(items) = value else { return Err(self.wrong(name, &form, value)) };
        let numbers: Option<Vec<f32>> =
            items.iter().map(|item| item.as_f64().map(|x| x as f32)).collect();
        match numbers {
            Some(numbers) if numbers.len() == length => Ok(numbers),
            Some(numbers) => Err(Finding::error(
                &self.at,
                format!("{} has {} items", self.place(name), numbers.len()),
            )
            .label(format!("expected one for each of {length} frequencies"))
            .into()),
            None => Err(self.wrong(name, &form, value)),
        }
    }

    /// Returns the context before scaling. The config's own key comes first, then the parameters' key, then
    /// the context of the model.
    pub(super) fn original(&self, context: Option<usize>, env: &dyn Env) -> Option<usize> {
        const KEY: &str = "original_max_position_embeddings";
        let nested = self.key.as_ref().is_some_and(|key| key.contains('.'));
        let top = if nested { None } else { env.config().get(KEY).and_then(Scalar::as_usize) };
        top.or_else(|| self.get(KEY).and_then(Scalar::as_usize))
            .or(context)
            .filter(|length| *length > 0)
    }

    pub(super) fn needs_context(decl: &RopeDecl) -> EvalError {
        Finding::error(
            &decl.at,
            format!("the table `{}` needs to know the longest sequence", decl.name.name),
        )
        .help("say `context: context`, with a dim of that name")
        .into()
    }

    /// Returns the factor by which the context was extended.
    fn factor(&self, context: Option<usize>, original: usize) -> Result<Option<f64>, EvalError> {
        Ok(self.optional("factor")?.or(context.map(|context| context as f64 / original as f64)))
    }

    pub(super) fn yarn(
        &self,
        context: Option<usize>,
        original: usize,
        env: &dyn Env,
    ) -> Result<Yarn, EvalError> {
        let factor = match self.factor(context, original)? {
            Some(factor) => factor,
            None => self.number("factor")?,
        };
        let mscale = self.nonzero("mscale");
        let all = self.nonzero("mscale_all_dim");
        let attention_factor = match (self.optional("attention_factor")?, mscale, all) {
            (Some(factor), _, _) => factor,
            (None, Some(mscale), Some(all)) => {
                attention_scale(factor, mscale) / attention_scale(factor, all)
            }
            _ => attention_scale(factor, 1.0),
        };
        // A table of one layer type takes this flag from the object around it.
        let truncate = match self.key.as_deref().and_then(|key| key.rsplit_once('.')) {
            Some((outer, _)) => env.config().get(&format!("{outer}.truncate")),
            None => self.get("truncate"),
        };
        Ok(Yarn {
            factor,
            attention_factor,
            original: original as f64,
            beta_fast: self.nonzero("beta_fast").unwrap_or(32.0),
            beta_slow: self.nonzero("beta_slow").unwrap_or(1.0),
            truncate: truncate.is_none_or(crate::eval::truth),
        })
    }

    /// Returns a number; zero counts as absent, as it does where these keys come from.
    fn nonzero(&self, name: &str) -> Option<f64> {
        self.get(name).and_then(Scalar::as_f64).filter(|m| *m != 0.0)
    }

    pub(super) fn long_attention(
        &self,
        context: Option<usize>,
        original: usize,
        decl: &RopeDecl,
    ) -> Result<f64, EvalError> {
        if let Some(factor) = self.optional("attention_factor")? {
            return Ok(factor);
        }
        let factor = self.factor(context, original)?.ok_or_else(|| Self::needs_context(decl))?;
        Ok(if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() })
    }
}

/// Returns the factor of attention scores that YaRN gives a context that is `factor` times as long.
fn attention_scale(factor: f64, m: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 }
}
