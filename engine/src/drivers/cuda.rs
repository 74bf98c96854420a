//! The engine of this project on a GPU, in builds that have it.

use super::EngineDriver;
use crate::{Error, NativeEngine};

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

/// Opens the one visible GPU, and returns the native engine on it.
#[cfg(feature = "cuda")]
pub fn gpu() -> Result<NativeEngine, Error> {
    let device = crate::device::cuda::CudaDevice::open()?;
    Ok(NativeEngine::on(crate::device::DeviceQueue::new(Box::new(device))))
}

/// Returns an error that says how to build the engine in.
#[cfg(not(feature = "cuda"))]
pub fn gpu() -> Result<NativeEngine, Error> {
    let how = DRIVER.start.err().map(|how| how.to_string()).unwrap_or_default();
    Err(Error::Other(format!("this build has no engine `{}`; {how}", DRIVER.name)))
}

#[cfg(feature = "cuda")]
mod engine {
    use crate::{Engine, Error, ModelSource, Session, SessionOptions};

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
            super::gpu()?.open(source, options)
        }
    }
}
