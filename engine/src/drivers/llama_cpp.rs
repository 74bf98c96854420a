//! llama.cpp, in builds that have it.

use super::EngineDriver;

#[cfg(feature = "llama-cpp")]
pub(super) static DRIVER: EngineDriver = EngineDriver {
    name: "llama.cpp",
    start: Ok(|context| {
        Box::new(crate::llama_cpp::LlamaCpp { context, ..crate::llama_cpp::LlamaCpp::default() })
    }),
    describe: Some(|path| crate::llama_cpp::LlamaCpp::default().describe(path)),
};

#[cfg(not(feature = "llama-cpp"))]
pub(super) static DRIVER: EngineDriver = EngineDriver {
    name: "llama.cpp",
    start: Err(super::NotBuilt {
        remedy: "build it in with `cargo build --release --features llama-cpp` (needs cmake, a C++ compiler and \
                 libclang)",
    }),
    describe: Some(|path| {
        Err(crate::Error::Other(format!(
            "this build has no engine `llama.cpp` for `{}`; build it in with `cargo build --release --features \
             llama-cpp` (needs cmake, a C++ compiler and libclang)",
            path.display()
        )))
    }),
};
