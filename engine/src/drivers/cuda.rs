//! The engine of this project on a GPU, in builds that have it.

use super::EngineDriver;

#[cfg(feature = "cuda")]
pub(super) static DRIVER: EngineDriver = EngineDriver {
    name: "cuda",
    start: Ok(|_| Box::new(crate::device::cuda::CudaEngine)),
    describe: None,
};

#[cfg(not(feature = "cuda"))]
pub(super) static DRIVER: EngineDriver = EngineDriver {
    name: "cuda",
    start: Err(super::NotBuilt {
        remedy: "build it in with `cargo build --release --features cuda` (needs no CUDA to build)",
    }),
    describe: None,
};
