//! Tensors in files: safetensors now, weight maps, hashes.
//!
//! Public surface (signatures other crates rely on):
//!
//! ```text
//! checkpoint::Checkpoint::open(dir: &Path) -> Result<Checkpoint, Error>    // config.json not needed; index.json or model.safetensors
//!   .tensors() -> &BTreeMap<String, TensorInfo>                  // name -> { dtype: FileDtype, shape: Vec<usize>, file: usize, range: (u64,u64) }
//!   .bytes(name) -> Result<&[u8], Error>                         // straight from the map
//!   .files() -> &[PathBuf]
//!   .fingerprint() -> String                                     // see docs/dump.md
//! safetensors::Header::read(...), safetensors::Writer             // streaming writer: names, dtypes, shapes first, then bytes in order; `.part` then rename
//! widen: to_f32(dtype, &[u8], &mut [f32]); round: f32 -> bf16 / f16 bits
//! ```
