//! `--arithmetic`: the products of matrices.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use engine::ProductArithmetic;

use models::local_model::LocalModel;
use registry::file;

/// Arithmetic of matrices.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct ArithmeticArgs {
    /// Products of matrices in the native engine [default: q8 on the CPU, library on a GPU, exact in `parity check`]
    #[arg(long, value_name = "NAME", value_enum)]
    arithmetic: Option<ArithmeticName>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ArithmeticName {
    /// For weights in blocks (Q4_K and others), rows are rounded to blocks of 8 bits and multiplied in integers, as other
    /// engines do; on the CPU, weights in bf16 are multiplied in tiles where the processor has AMX
    Q8,
    /// On a GPU: products of several rows by cuBLASLt, with sums in f32; weights in blocks are decoded to the dtype of
    /// the rows
    Library,
    /// Rows as they are, times decoded weights, in one order of additions for every length of a step
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

    /// Returns the arithmetic for a model; that of the CPU or of a GPU if none was chosen. Weights are repacked if both
    /// copies fit in memory.
    pub(crate) fn of(self, target: &LocalModel, on_cpu: bool) -> anyhow::Result<ProductArithmetic> {
        let usual = if on_cpu { ArithmeticName::Q8 } else { ArithmeticName::Library };
        Ok(match self.arithmetic.unwrap_or(usual).arithmetic() {
            ProductArithmetic::Q8 { .. } => {
                let (bytes, _) = target.extent()?;
                let repack =
                    available().is_none_or(|available| bytes.saturating_mul(2) < available);
                ProductArithmetic::Q8 { repack }
            }
            other => other,
        })
    }

    /// Returns the arithmetic of a comparison with a reference: exact if none was chosen.
    pub(crate) fn of_check(self) -> ProductArithmetic {
        self.arithmetic.map_or(ProductArithmetic::Exact, ArithmeticName::arithmetic)
    }
}

impl ArithmeticName {
    fn arithmetic(self) -> ProductArithmetic {
        match self {
            Self::Q8 => ProductArithmetic::Q8 { repack: false },
            Self::Library => ProductArithmetic::Library,
            Self::Exact => ProductArithmetic::Exact,
        }
    }
}

/// Returns the memory that this machine can give, in bytes; none where the system does not tell.
pub(crate) fn available() -> Option<u64> {
    let text = file::read_text("/proc/meminfo".as_ref(), file::CONFIG).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
