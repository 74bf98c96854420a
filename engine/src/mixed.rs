//! One model with weights from several places: shows what the change of some of them does.

use std::sync::Arc;

use checkpoints::checkpoint::Rounding;
use checkpoints::gguf_weights::{BlockView, RowParts};
use checkpoints::load::WeightView as FileView;
use checkpoints::weights::StridedMatrix;
use registry::graph::WeightId;

use crate::capability::Feature;
use crate::weights::WeightSource;
use crate::{Engine, Error, ModelSource, NativeEngine, Session, SessionOptions};

/// The native engine on weights from several places. [`ModelSource::dir`] is not looked at.
#[derive(Clone)]
pub struct MixedEngine {
    /// The engine, on the CPU or a device.
    pub engine: NativeEngine,
    /// The sources of weights. Scales that belong to no weight come from the first.
    pub sources: Vec<Arc<dyn WeightSource>>,
    /// For each weight of the graph, which of the sources it comes from.
    pub from: Vec<usize>,
}

impl MixedEngine {
    fn of(&self, id: WeightId) -> &dyn WeightSource {
        &*self.sources[self.from[id.0]]
    }
}

impl WeightSource for MixedEngine {
    fn view(&self, id: WeightId) -> Result<FileView<'_>, Error> {
        self.of(id).view(id)
    }

    fn computed(&self, id: WeightId) -> Result<Option<Vec<f32>>, Error> {
        self.of(id).computed(id)
    }

    fn is_computed(&self, id: WeightId) -> bool {
        self.of(id).is_computed(id)
    }

    fn strided(&self, id: WeightId) -> Result<Option<StridedMatrix<'_>>, Error> {
        self.of(id).strided(id)
    }

    fn rounding(&self, id: WeightId) -> Result<Option<Rounding>, Error> {
        self.of(id).rounding(id)
    }

    fn scale(&self, name: &str) -> Result<Option<f32>, Error> {
        self.sources.first().map_or(Ok(None), |first| first.scale(name))
    }

    fn blocks(&self, id: WeightId) -> Option<BlockView<'_>> {
        self.of(id).blocks(id)
    }

    fn row_parts(&self, id: WeightId) -> Option<RowParts<'_>> {
        self.of(id).row_parts(id)
    }
}

impl Engine for MixedEngine {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn has(&self, feature: Feature) -> bool {
        self.engine.has(feature)
    }

    fn open(
        &self,
        source: &ModelSource<'_>,
        options: &SessionOptions,
    ) -> Result<Box<dyn Session>, Error> {
        let tensors = Box::new(self.clone());
        self.engine.open_with(Arc::clone(&source.model), tensors, options)
    }
}
