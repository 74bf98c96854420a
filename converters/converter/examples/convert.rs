//! Converts a checkpoint to a GGUF file, and prints the remarks.
//!
//! `cargo run --release -p onboard-converter --example convert -- fixtures/NAME gguf:q4_k_m model.gguf`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use models::open::{OpenOptions, open};
use models::specs::Specs;
use onboard_converter::{ConversionObserver, ConvertOptions, convert};

/// Observer that prints remarks.
struct PrintedRemarks;

impl ConversionObserver for PrintedRemarks {
    fn note(&self, text: &str) {
        println!("{text}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let folder: PathBuf = words.next().ok_or("give the folder of a checkpoint")?.into();
    let format = words.next().ok_or("give a format, as in gguf:q4_k_m")?;
    let output: PathBuf = words.next().ok_or("give the output")?.into();
    let opened = open(&folder, &mut Specs::builtin(), &OpenOptions::default())?;
    let options = ConvertOptions::new(&format.to_string_lossy(), output);
    for file in convert(&opened.target, &options, &PrintedRemarks)?.files {
        println!("wrote {}", file.display());
    }
    Ok(())
}
