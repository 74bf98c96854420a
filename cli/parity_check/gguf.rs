//! `parity check FILE.gguf` with the native engine: agreement if the file is lossless, and the cost if it
//! is not.

use std::path::PathBuf;

use anyhow::Result;
use engine::{Options, Rounds};
use formats::codec::expected_error;
use formats::gguf::File;
use models::target::Target;
use parity::CheckOptions;
use registry::dtype::Dtype;

use super::Check;
use super::costs::{Quantized, Row};
use crate::Ended;
use crate::convert::{self, Distance};
use crate::reference::open_dump;
use crate::term;

/// Factor above the expected error from which a tensor is out of band: outliers, or a wrong tensor.
const BAND: f64 = 1.5;

impl Check {
    pub(super) fn run_gguf(&self, target: &Target) -> Result<Ended> {
        let (path, dump) = open_dump(&target.dir, self.reference.as_deref())?;
        if dump.manifest.rounds().is_some_and(|rounds| rounds != Rounds::None) {
            term::note(
                "note: the dump's reference rounds what matrices of codes multiply (`rounds` in its manifest), and a GGUF \
                 file knows nothing of that; to compare weights alone, dump a copy without codes: convert MODEL --to bf16",
            );
        }
        let file = File::open(&target.dir)?;
        if is_quantized(&file) {
            let options =
                Options { dtype: Dtype::F32, threads: self.threads, ..Options::default() };
            let rows = match self.source(target) {
                Some(source) => rows(&convert::distances(&source, &self.choice, &target.dir)?),
                None => Vec::new(),
            };
            let quantized = quantized(&file, rows);
            return self.show_cost(target, &dump, &path, &options, quantized);
        }
        let options = CheckOptions {
            same_model: false,
            rounds: Some(Rounds::None),
            ..self.options(self.dtypes_of_file())
        };
        self.compare(target, &dump, &options)
    }

    /// Returns the source checkpoint of the file: as given, or the folder it lies in.
    fn source(&self, target: &Target) -> Option<PathBuf> {
        let beside = || {
            let home = target.home();
            home.join("config.json").is_file().then(|| home.to_owned())
        };
        self.source.clone().or_else(beside)
    }
}

/// True if any tensor is quantized in blocks.
pub(crate) fn is_quantized(file: &File) -> bool {
    file.tensors().iter().any(|info| info.ty.is_quantized())
}

/// Returns the static facts about a file's tensors, with their errors.
pub(super) fn quantized(file: &File, rows: Vec<Row>) -> Quantized {
    let (bytes, numbers) = file
        .tensors()
        .iter()
        .fold((0, 0), |sum, info| (sum.0 + info.bytes, sum.1 + info.elements()));
    let errors = file.tensors().iter().filter_map(|info| expected_error(info.ty));
    Quantized {
        bits_per_weight: bytes as f64 * 8.0 / numbers.max(1) as f64,
        worst: errors.fold(0.0, f64::max),
        inputs: 0.0,
        rows,
    }
}

pub(super) fn rows(distances: &[Distance]) -> Vec<Row> {
    let quantized = distances.iter().filter(|one| one.ty.is_quantized());
    let row = |one: &Distance| {
        let (relative_error, expected) = (one.measure.relative(), expected_error(one.ty));
        let in_band = expected.is_none_or(|expected| relative_error <= BAND * expected);
        Row { name: one.name.clone(), ty: one.ty.name(), relative_error, expected, in_band }
    };
    quantized.map(row).collect()
}
