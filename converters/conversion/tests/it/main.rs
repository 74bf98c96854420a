//! Conversions of single models and tensors.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod bands;
mod folder;
#[path = "../support/fuse.rs"]
mod fuse;
mod fused;
mod mix;
mod names;
#[path = "../../../formats/tests/support/normal.rs"]
mod normal;
#[path = "../support/whole.rs"]
mod whole;
