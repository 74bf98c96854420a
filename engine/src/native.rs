//! The native engine: runs a resolved graph on the CPU.

use crate::{Engine, Error, Options, Session, Source};

/// The engine of this crate.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct NativeEngine {}

impl NativeEngine {
    /// With every op of the spec language.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Engine for NativeEngine {
    fn name(&self) -> &'static str {
        "native"
    }

    fn open(&self, _source: &Source<'_>, _options: &Options) -> Result<Box<dyn Session>, Error> {
        Err(Error::Other("the native engine has no executor yet".to_owned()))
    }
}
