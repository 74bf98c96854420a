//! Formats of tensor files and of numbers.

mod codec;
mod gguf;
mod golden;
mod imatrix;
mod iq;
mod lanes;
mod safetensors;
