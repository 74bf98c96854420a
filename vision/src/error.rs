//! Reasons that pictures give no rows.

use images::{OpenError, PrepareError};

/// Reasons that pictures give no rows.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The processor cannot be opened.
    #[error("the processor of images cannot be opened")]
    Processor(#[from] OpenError),
    /// A picture cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The encoder cannot be opened.
    #[error("the encoder of images cannot be opened")]
    Open(#[from] models::Error),
    /// The encoder cannot be run.
    #[error("the encoder of images cannot be run")]
    Engine(#[from] engine::Error),
    /// The results of the processor are not what the encoder takes.
    #[error("{0}")]
    Pixels(String),
}
