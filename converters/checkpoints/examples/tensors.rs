//! Lists the tensors of a checkpoint.
//!
//! `cargo run -p onboard-checkpoints --example tensors -- fixtures/llama`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::PathBuf;

use onboard_checkpoints::Checkpoint;

fn main() -> Result<(), Box<dyn Error>> {
    let path: PathBuf = std::env::args_os().nth(1).ok_or("give the folder of a checkpoint")?.into();
    let checkpoint = Checkpoint::open(&path)?;
    for (name, tensor) in checkpoint.tensors() {
        println!("{name}  {:?}  {:?}", tensor.dtype, tensor.shape);
    }
    println!("fingerprint {}", checkpoint.fingerprint()?);
    Ok(())
}
