//! `--arithmetic`: the products of weights in blocks.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use engine::BlockArithmetic;

use models::local_model::LocalModel;
use registry::file;

/// Arithmetic of weights in blocks.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ArithmeticArgs {
    /// Products of weights in blocks (Q4_K and others) in the native engine [default: q8]
    #[arg(long, value_name = "NAME", value_enum)]
    arithmetic: Option<ArithmeticName>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ArithmeticName {
    /// Rows are rounded to blocks of 8 bits and multiplied in integers, as other engines do; weights in bf16 are
    /// multiplied in tiles where the processor has AMX
    Q8,
    /// Rows as they are, times decoded weights, as `parity check` does
    Exact,
}

impl ArithmeticArgs {
    /// Returns an error if an arithmetic was chosen for an engine that has its own.
    pub(crate) fn refuse_for(self, engine: &str) -> anyhow::Result<()> {
        ensure!(
            self.arithmetic.is_none(),
            "--arithmetic is a choice of the native engine; `{engine}` multiplies in its own way"
        );
        Ok(())
    }

    /// Returns the arithmetic for a model. Weights are repacked if both copies fit in memory.
    /// Products on a GPU are exact unless integers are asked for, which that engine refuses.
    pub(crate) fn of(self, target: &LocalModel, on_cpu: bool) -> anyhow::Result<BlockArithmetic> {
        let usual = if on_cpu { ArithmeticName::Q8 } else { ArithmeticName::Exact };
        Ok(match self.arithmetic.unwrap_or(usual) {
            ArithmeticName::Exact => BlockArithmetic::Exact,
            ArithmeticName::Q8 => {
                let (bytes, _) = target.extent()?;
                let repack =
                    available().is_none_or(|available| bytes.saturating_mul(2) < available);
                BlockArithmetic::Q8 { repack }
            }
        })
    }
}

/// Returns the memory that this machine can give, in bytes; none where the system does not tell.
pub(crate) fn available() -> Option<u64> {
    let text = file::read_text("/proc/meminfo".as_ref(), file::CONFIG).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
