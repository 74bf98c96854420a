//! Prepares a picture as the processor of a checkpoint does, and prints the shapes of the results.
//!
//! `cargo run -p onboard-images --example prepare -- fixtures/encoders/llava fixtures/pictures/wide.png`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use onboard_images::Processor;
use onboard_images::decode::{DecodeLimits, read};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args_os().skip(1);
    let folder = paths.next().ok_or("give the folder of a checkpoint and a picture")?;
    let file = paths.next().ok_or("give a picture: a PNG, JPEG or WebP file")?;
    let picture = read(file.as_ref(), &DecodeLimits::default())?;
    let prepared = Processor::open(folder)?.prepare(&[picture])?;
    for (name, tensor) in &prepared.outputs {
        println!("{name} {:?}", tensor.shape);
    }
    Ok(())
}
