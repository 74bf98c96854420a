//! The kernels of devices, compiled by the C++ compiler and run on the CPU in whole sessions.
//!
//! A device session must give what the engine gives on the CPU: logits, taps and states, bit for bit.

#![allow(clippy::unwrap_used, reason = "a trial stops where it is surprised")]

mod driver;
mod emulation;
mod kernels;
mod library;
mod long;
mod quantized;
mod sessions;
#[path = "../../../tests/support/trials.rs"]
mod trials;

fn main() {
    if let Ok(what) = std::env::var(driver::CHILD) {
        return driver::child(&what);
    }
    trials::run([
        driver::trials(),
        kernels::trials(),
        library::trials(),
        long::trials(),
        quantized::trials(),
        sessions::trials(),
    ])
}
