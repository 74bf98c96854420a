//! Turns a picture into the rows that enter the text model of a checkpoint, and prints how many there are.
//!
//! `cargo run -p onboard-vision --example encode -- fixtures/encoders/llava fixtures/pictures/wide.png`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use images::decode::{DecodeLimits, read};
use models::specs::Specs;
use onboard_vision::{EncoderOptions, VisionEncoder};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1).map(PathBuf::from);
    let folder = paths.next().ok_or("give the folder of a checkpoint and a picture")?;
    let file = paths.next().ok_or("give a picture: a PNG, JPEG or WebP file")?;
    let picture = read(&file, &DecodeLimits::default())?;
    let mut encoder =
        VisionEncoder::open(&folder, &mut Specs::builtin(), &EncoderOptions::default())?;
    for frame in encoder.encode(&[picture])?.frames {
        println!("{} x {} rows of {} numbers", frame.lines, frame.columns, frame.width);
    }
    Ok(())
}
