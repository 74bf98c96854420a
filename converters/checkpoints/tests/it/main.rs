//! Checkpoints that tests write or damage.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod checkpoint;
mod damaged;
mod quantized;
