//! The engine of this project.

use super::Driver;
use crate::NativeEngine;

pub(super) static DRIVER: Driver =
    Driver { name: "native", start: Ok(|_| Box::new(NativeEngine::new())), describe: None };
