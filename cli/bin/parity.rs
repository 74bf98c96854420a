//! The `parity` command: starts the `onboard` beside it under this name.

use std::process::ExitCode;

#[path = "launch.rs"]
mod launch;

fn main() -> ExitCode {
    launch::onboard("parity")
}
