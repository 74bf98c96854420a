//! Preprocessing of images: pixel values and placeholder tokens as transformers' processors return them.
//!
//! [`Processor::open`] reads the configuration files of a checkpoint and finds the file of `images/processors` that
//! serves its class. [`Processor::prepare`] runs the steps of that file on pictures. docs/images.md describes the
//! files; no class and no model is named in Rust.
//!
//! ```
//! use onboard_images::Processor;
//! use onboard_images::decode::{DecodeLimits, read};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
//! # let folder = data.join("processors/example");
//! # let file = data.join("pictures/rgb_wide.png");
//! let processor = Processor::open(&folder)?;
//! let picture = read(&file, &DecodeLimits::default())?;
//! let prepared = processor.prepare(&[picture])?;
//! let pixels = &prepared.outputs["pixel_values"];
//! assert_eq!(pixels.shape, [72, 1176]);
//! assert_eq!(prepared.prompts[0].count("<|image_pad|>"), 18);
//! # Ok(())
//! # }
//! ```

pub mod decode;
pub mod picture;
mod processor;
pub mod resample;
mod run;
mod settings;
pub mod sheet;

pub use picture::Picture;
pub use processor::{OpenError, PrepareError, PreparedPictures, Processor, ProcessorOptions};
pub use resample::BackEnd;
pub use run::{FrameLimits, ImagePrompt, PromptPiece, Tensor, Values};
