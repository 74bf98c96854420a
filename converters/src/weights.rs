//! The weights of a model, found in a checkpoint.
//!
//! Most are a tensor of the same name, or a stretch of one, and are read straight from the map.
//! Where the spec's weight map reorders numbers, a buffer is made.

use registry::graph::{Weight, WeightId};

use crate::checkpoint::{self, Checkpoint};
use crate::load::WeightView;
use crate::safetensors::FileDtype;
use crate::shown;

/// Why a weight cannot be had from a checkpoint.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    #[error(
        "`{checkpoint}` has no tensor `{weight}`; expected shape {shape:?}; \
         correct the name in the spec, or add a rule to its `weights:`"
    )]
    Missing { checkpoint: String, weight: String, shape: Vec<usize> },
    #[error(
        "tensor `{weight}` of `{checkpoint}` has shape {found:?}; the spec expects {expected:?}; \
         correct the dims or the op in the spec"
    )]
    Shape { checkpoint: String, weight: String, found: Vec<usize>, expected: Vec<usize> },
}

/// Where a weight's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A stretch of a tensor's bytes.
    View {
        /// The tensor.
        tensor: String,
        /// Its bytes `begin..end`, from the beginning of the tensor.
        range: (usize, usize),
    },
    /// Made by the weight map.
    Made(Vec<u8>),
}

/// One weight, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What its numbers are kept in.
    pub dtype: FileDtype,
    /// Its shape in the model.
    pub shape: Vec<usize>,
    /// Where its bytes are.
    pub source: Source,
}

/// The weights of a model, in the order of its graph.
#[derive(Debug)]
pub struct Weights {
    checkpoint: Checkpoint,
    found: Vec<Found>,
}

impl Weights {
    /// Finds every weight. No bytes are read.
    pub fn new(checkpoint: Checkpoint, wanted: &[Weight]) -> Result<Self, Error> {
        let root = || checkpoint.root().display().to_string();
        let find = |weight: &Weight| {
            let (name, expected) = (&weight.name, &weight.shape);
            let info = checkpoint.info(name).ok_or_else(|| Error::Missing {
                checkpoint: root(),
                weight: shown(name),
                shape: expected.clone(),
            })?;
            if info.shape != *expected {
                return Err(Error::Shape {
                    checkpoint: root(),
                    weight: shown(name),
                    found: info.shape.clone(),
                    expected: expected.clone(),
                });
            }
            let range = (0, info.bytes() as usize);
            let source = Source::View { tensor: name.clone(), range };
            Ok(Found { dtype: info.dtype, shape: info.shape.clone(), source })
        };
        let found = wanted.iter().map(find).collect::<Result<_, _>>()?;
        Ok(Self { checkpoint, found })
    }

    /// A weight, ready to be read.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn view(&self, id: WeightId) -> Result<WeightView<'_>, Error> {
        let found = &self.found[id.0];
        let bytes = match &found.source {
            Source::View { tensor, range } => &self.checkpoint.bytes(tensor)?[range.0..range.1],
            Source::Made(bytes) => bytes,
        };
        Ok(WeightView { dtype: found.dtype, shape: &found.shape, bytes })
    }

    /// Where a weight comes from.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn found(&self, id: WeightId) -> &Found {
        &self.found[id.0]
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
}
