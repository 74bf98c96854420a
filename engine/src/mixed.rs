//! One model with weights of two checkpoints: shows what the change of some of them does.

use std::collections::BTreeSet;
use std::sync::Arc;

use converters::load::WeightView as FileView;
use converters::weights::Weights;
use registry::graph::WeightId;

use crate::weights::Tensors;
use crate::{Engine, Error, NativeEngine, Options, Session, Source};

/// The native engine on weights of two checkpoints. [`Source::dir`] is not looked at.
#[derive(Clone)]
pub struct Mixed {
    /// Where weights come from unless they are listed.
    pub first: Arc<Weights>,
    /// Where the listed ones come from.
    pub second: Arc<Weights>,
    /// Those that come from the second.
    pub listed: BTreeSet<WeightId>,
}

impl Mixed {
    fn of(&self, id: WeightId) -> &Weights {
        if self.listed.contains(&id) { &self.second } else { &self.first }
    }
}

impl Tensors for Mixed {
    fn view(&self, id: WeightId) -> Result<FileView<'_>, Error> {
        Tensors::view(self.of(id), id)
    }

    fn made(&self, id: WeightId) -> Option<Result<Vec<f32>, Error>> {
        Tensors::made(self.of(id), id)
    }

    fn is_made(&self, id: WeightId) -> bool {
        Tensors::is_made(self.of(id), id)
    }

    fn is_eight_bits(&self, id: WeightId) -> bool {
        Tensors::is_eight_bits(self.of(id), id)
    }

    fn input_scale(&self, id: WeightId) -> Result<Option<f32>, Error> {
        Tensors::input_scale(self.of(id), id)
    }

    fn scale(&self, name: &str) -> Result<Option<f32>, Error> {
        Tensors::scale(&*self.second, name)
    }
}

impl Engine for Mixed {
    fn name(&self) -> &'static str {
        "native"
    }

    fn open(&self, source: &Source<'_>, options: &Options) -> Result<Box<dyn Session>, Error> {
        let tensors = Box::new(self.clone());
        NativeEngine::new().open_with(Arc::clone(&source.model), tensors, options)
    }
}
