//! Prints the type that a mix gives to each tensor of a GGUF file.
//!
//! `cargo run -p onboard-conversion --example types -- model.gguf q4_k_m`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use formats::gguf::GgufFile;
use onboard_conversion::mix::{MixFacts, MixTarget, MixTensor, Overrides, assign};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let path: PathBuf = words.next().ok_or("give the path of a GGUF file")?.into();
    let mix = words.next().ok_or("give a mix, as in q4_k_m")?;
    let mix = MixTarget::parse(&mix.to_string_lossy())?;
    let file = GgufFile::open(&path)?;
    let tensors: Vec<MixTensor<'_>> = file
        .tensors()
        .iter()
        .map(|tensor| MixTensor { name: &tensor.name, shape: &tensor.shape, base: tensor.ty })
        .collect();
    let facts = MixFacts::read(file.metadata(), false)?;
    let chosen = assign(mix, &tensors, &facts, &Overrides::default())?;
    for (tensor, chosen) in tensors.iter().zip(chosen) {
        println!("{}  {:?}  {}", tensor.name, chosen.ty, chosen.why);
    }
    Ok(())
}
