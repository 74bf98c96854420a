//! The `convert` command: starts `onboard`, which lies beside it, under this name.

use std::process::ExitCode;

#[path = "launch.rs"]
mod launch;

fn main() -> ExitCode {
    launch::onboard("convert")
}
