//! Lists the keys and tensors of a GGUF file.
//!
//! `cargo run -p onboard-formats --example header -- model.gguf`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use onboard_formats::gguf::GgufFile;

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give the path of a GGUF file")?.into();
    let file = GgufFile::open(&path)?;
    for (key, value) in file.metadata().iter() {
        println!("{key}: {}", value.kind_name());
    }
    for tensor in file.tensors() {
        println!("{}  {:?}  {:?}", tensor.name, tensor.ty, tensor.shape);
    }
    Ok(())
}
