//! What a check does and leaves out.

use engine::{Options, Rounds};
use registry::dtype::Dtype;

use crate::schedules::ROLLBACK;

/// What to check.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct CheckOptions {
    /// Dtypes; all runs of the dump when empty.
    pub dtypes: Vec<Dtype>,
    /// Whether each op is also run on the reference's inputs.
    pub local: bool,
    /// Whether the engine is also compared with itself, fed in other ways.
    pub schedules: bool,
    /// Whether a spec with dtypes that an op refuses runs all the same.
    pub allow_dtype_mismatch: bool,
    /// Whether fused kernels may be used.
    pub rewrites: bool,
    /// Worker threads of the engine; its own choice when none.
    pub threads: Option<usize>,
    /// Whether `config.json` and the weights must be those of the dump. A model that was
    /// converted on purpose is compared with this off.
    pub same_model: bool,
    /// Most that an f32 run may move a log-probability; what the ensemble of the reference shows when none. Engines
    /// whose arithmetic is not the reference's (sums in blocks, fast exponentials) need a bound of their own.
    pub logprob: Option<f64>,
    /// Which matrices of codes multiply rounded rows; what the dump says of its reference when none.
    pub rounds: Option<Rounds>,
    /// Whether keys and values are kept as the model has them, whatever the dump says of its reference.
    pub own_caches: bool,
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
            own_caches: false,
        }
    }
}

impl CheckOptions {
    /// How sessions are opened.
    pub(crate) fn engine(&self, dtype: Dtype) -> Options {
        Options {
            dtype,
            rewrites: self.rewrites,
            poison: true,
            allow_dtype_mismatch: self.allow_dtype_mismatch,
            rollback: ROLLBACK,
            drafts: false,
            finite: false,
            ranks: 1,
            threads: self.threads,
            rounds: self.rounds.unwrap_or_default(),
            watch: None,
        }
    }
}
