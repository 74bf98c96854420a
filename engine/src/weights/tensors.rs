//! Sources of weights: checkpoints, GGUF files, and memory.

use checkpoints::GgufWeights;
use checkpoints::checkpoint::Rounding;
use checkpoints::gguf_weights::{BlockView, RowParts};
use checkpoints::integers::is_integer;
use checkpoints::load::WeightView as FileView;
use checkpoints::weights::StridedMatrix;
use formats::safetensors::FileDtype;
use registry::graph::WeightId;

use super::wrong_dtype;
use crate::Error;

/// A source of the numbers of weights.
pub trait WeightSource: Send + Sync {
    /// Returns one weight of the graph; cheap, since every use calls it.
    fn view(&self, id: WeightId) -> Result<FileView<'_>, Error>;

    /// Computes the numbers of a weight that is not stored as it is; none for any other weight.
    fn computed(&self, _id: WeightId) -> Result<Option<Vec<f32>>, Error> {
        Ok(None)
    }

    /// True if [`WeightSource::computed`] would make the weight.
    fn is_computed(&self, _id: WeightId) -> bool {
        false
    }

    /// Returns a matrix that [`WeightSource::computed`] would make, in place, if its numbers lie at constant distances.
    fn strided(&self, _id: WeightId) -> Result<Option<StridedMatrix<'_>>, Error> {
        Ok(None)
    }

    /// Returns the rounding of the rows that the weight multiplies, if one is declared.
    fn rounding(&self, _id: WeightId) -> Result<Option<Rounding>, Error> {
        Ok(None)
    }

    /// Returns a scale that is stored under this name.
    fn scale(&self, _name: &str) -> Result<Option<f32>, Error> {
        Ok(None)
    }

    /// Returns a weight that is kept in blocks, which have no [`FileView`].
    fn blocks(&self, _id: WeightId) -> Option<BlockView<'_>> {
        None
    }

    /// Returns a matrix whose rows are in blocks of several types; its [`FileView`] is decoded.
    fn row_parts(&self, _id: WeightId) -> Option<RowParts<'_>> {
        None
    }
}

impl WeightSource for GgufWeights {
    fn view(&self, id: WeightId) -> Result<FileView<'_>, Error> {
        let BlockView { ty, shape, bytes, .. } = self.view(id);
        // Both formats have the same names of integers.
        let integer = FileDtype::parse(ty.name()).filter(|dtype| is_integer(*dtype));
        let Some(dtype) = ty.plain().map(FileDtype::from).or(integer) else {
            return Err(wrong_dtype(&format!("number {}", id.0), ty.name()));
        };
        Ok(FileView { dtype, shape, bytes })
    }

    fn blocks(&self, id: WeightId) -> Option<BlockView<'_>> {
        if self.row_parts(id).is_some() {
            return None;
        }
        Some(self.view(id)).filter(|view| view.ty.is_quantized())
    }

    fn row_parts(&self, id: WeightId) -> Option<RowParts<'_>> {
        self.row_parts(id)
    }
}

impl WeightSource for checkpoints::weights::CheckpointWeights {
    fn view(&self, id: WeightId) -> Result<FileView<'_>, Error> {
        self.view(id).map_err(|e| Error::Checkpoint(Box::new(e)))
    }

    fn computed(&self, id: WeightId) -> Result<Option<Vec<f32>>, Error> {
        self.read(id).map_err(|e| Error::Checkpoint(Box::new(e)))
    }

    fn is_computed(&self, id: WeightId) -> bool {
        matches!(self.found(id).source, checkpoints::weights::WeightLocation::Computed(_))
    }

    fn strided(&self, id: WeightId) -> Result<Option<StridedMatrix<'_>>, Error> {
        self.strided(id).map_err(|e| Error::Checkpoint(Box::new(e)))
    }

    fn rounding(&self, id: WeightId) -> Result<Option<Rounding>, Error> {
        self.rounding(id).map_err(|e| Error::Checkpoint(Box::new(e)))
    }

    fn scale(&self, name: &str) -> Result<Option<f32>, Error> {
        self.checkpoint().scale(name).map_err(|e| Error::Checkpoint(Box::new(e)))
    }
}

/// Weights that lie in memory, in the order of the graph.
#[derive(Debug, Clone, Default)]
pub struct WeightsInMemory {
    tensors: Vec<(Vec<usize>, Vec<u8>)>,
}

impl WeightsInMemory {
    /// Adds the next weight of the graph, in f32.
    pub fn push(&mut self, shape: &[usize], data: &[f32]) {
        self.tensors.push((shape.to_vec(), data.iter().flat_map(|x| x.to_le_bytes()).collect()));
    }
}

impl WeightSource for WeightsInMemory {
    fn view(&self, id: WeightId) -> Result<FileView<'_>, Error> {
        let (shape, bytes) = self
            .tensors
            .get(id.0)
            .ok_or_else(|| Error::Other(format!("weight {} was not given", id.0)))?;
        Ok(FileView { dtype: FileDtype::F32, shape, bytes })
    }
}
