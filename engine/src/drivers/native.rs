//! The engine of this project.

use super::EngineDriver;
use crate::NativeEngine;

pub(super) static DRIVER: EngineDriver =
    EngineDriver { name: "native", start: Ok(|_| Box::new(NativeEngine::new())), describe: None };
