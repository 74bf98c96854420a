//! Rows of images for a text model.
//!
//! Pictures are prepared by the processor of a checkpoint, divided into patches, and go through its encoder. Both are data: a
//! processor is a file of `images/processors`, an encoder a spec with `encodes:`
//! ([decision 118](../../docs/decisions/0118-encoders-are-models.md)).
//!
//! ```
//! use images::decode::{DecodeLimits, read};
//! use models::specs::Specs;
//! use onboard_vision::{EncoderOptions, VisionEncoder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::path::Path::new("../fixtures/encoders/llava");
//! # let file = std::path::Path::new("../fixtures/pictures/wide.png");
//! let mut encoder = VisionEncoder::open(folder, &mut Specs::builtin(), &EncoderOptions::default())?;
//! let encoded = encoder.encode(&[read(file, &DecodeLimits::default())?])?;
//! assert_eq!((encoded.frames[0].lines, encoded.frames[0].columns), (8, 8));
//! # Ok(())
//! # }
//! ```

mod encoder;
mod error;
mod frames;
mod prompt;

pub use encoder::{EncodedFrame, EncodedPictures, EncoderOptions, VisionEncoder};
pub use error::Error;
pub use prompt::PicturePrompt;
