//! The engine of this project on a GPU, in builds that have it.

use super::EngineDriver;

#[cfg(feature = "cuda")]
pub(super) static DRIVER: EngineDriver =
    EngineDriver { name: "cuda", start: Ok(|_| Box::new(engine::CudaEngine)), describe: None };

#[cfg(not(feature = "cuda"))]
pub(super) static DRIVER: EngineDriver = EngineDriver {
    name: "cuda",
    start: Err(super::NotBuilt {
        remedy: "build it in with `cargo build --release --features cuda` (needs no CUDA to build)",
    }),
    describe: None,
};

#[cfg(feature = "cuda")]
mod engine {
    use crate::device::DeviceQueue;
    use crate::device::cuda::CudaDevice;
    use crate::{Engine, Error, ModelSource, NativeEngine, Session, SessionOptions};

    /// The native engine on the one visible GPU, which is opened with a model.
    #[derive(Debug)]
    pub(super) struct CudaEngine;

    impl Engine for CudaEngine {
        fn name(&self) -> &'static str {
            "cuda"
        }

        fn exact(&self) -> bool {
            true
        }

        fn open(
            &self,
            source: &ModelSource<'_>,
            options: &SessionOptions,
        ) -> Result<Box<dyn Session>, Error> {
            let queue = DeviceQueue::new(Box::new(CudaDevice::open()?));
            NativeEngine::on(queue).open(source, options)
        }
    }
}
