//! Rows of images for a text model.
//!
//! Pictures are prepared by the processor of a checkpoint, divided into patches, and go through its encoder. Both are data: a
//! processor is a file of `images/processors`, an encoder a spec with `encodes:`
//! ([decision 118](../../docs/decisions/0118-encoders-are-models.md)).

mod encoder;
mod frames;
mod prompt;

pub use encoder::{EncodedFrame, EncodedPictures, EncoderOptions, Error, VisionEncoder};
pub use prompt::PicturePrompt;
