//! Options of a check.

use engine::{InputRounding, ProductArithmetic, SessionOptions};
use registry::dtype::Dtype;

use crate::schedules::ROLLBACK;

/// Options of a check.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct CheckOptions {
    /// Dtypes; all runs of the dump if empty.
    pub dtypes: Vec<Dtype>,
    /// True if each op is also run on the reference's inputs.
    pub local: bool,
    /// True if the engine is also compared with itself under other schedules.
    pub schedules: bool,
    /// True if a spec runs even with dtypes that an op refuses.
    pub allow_dtype_mismatch: bool,
    /// True if fused kernels may be used.
    pub rewrites: bool,
    /// Number of worker threads of the engine; its default if none.
    pub threads: Option<usize>,
    /// True if `config.json` and the weights must be those of the dump. It is false for a deliberately
    /// converted model.
    pub same_model: bool,
    /// Maximum effect of an f32 run on a log-probability; derived from the reference's ensemble if none.
    /// Engines with different arithmetic (block sums, fast exponentials) need a bound of their own.
    pub logprob: Option<f64>,
    /// Quantized matrices that multiply rounded rows; as in the dump's reference if none.
    pub rounds: Option<InputRounding>,
    /// Products of matrices in the engine.
    pub arithmetic: ProductArithmetic,
    /// True if keys and values are stored as the model declares, whatever the dump's reference did.
    pub own_caches: bool,
    /// True if an f32 run of the engine is known to agree, as that of an engine with a fault in 16 bits alone.
    pub agrees_in_f32: bool,
    /// Function that is given a description of each part of the check before it runs.
    pub progress: Option<fn(&str)>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            dtypes: Vec::new(),
            local: true,
            schedules: true,
            allow_dtype_mismatch: false,
            rewrites: true,
            threads: None,
            same_model: true,
            logprob: None,
            rounds: None,
            arithmetic: ProductArithmetic::Exact,
            own_caches: false,
            agrees_in_f32: false,
            progress: None,
        }
    }
}

impl CheckOptions {
    /// Reports the part of a check that begins.
    pub(crate) fn begin(&self, part: impl FnOnce() -> String) {
        if let Some(progress) = self.progress {
            progress(&part());
        }
    }

    /// Returns the options for opening a session.
    pub(crate) fn engine(&self, dtype: Dtype) -> SessionOptions {
        SessionOptions {
            dtype,
            rewrites: self.rewrites,
            poison: true,
            allow_dtype_mismatch: self.allow_dtype_mismatch,
            rollback: ROLLBACK,
            drafts: false,
            prefix: false,
            documents: false,
            spans: false,
            rows: false,
            finite: false,
            ranks: 1,
            threads: self.threads,
            part: SessionOptions::default().part,
            rounds: self.rounds.unwrap_or_default(),
            arithmetic: self.arithmetic,
            rounds_by_type: Vec::new(),
            observer: None,
        }
    }
}
