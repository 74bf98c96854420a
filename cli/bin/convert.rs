//! The `convert` command: starts the `onboard` beside it under this name.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[path = "launch.rs"]
mod launch;

fn main() -> ExitCode {
    launch::onboard("convert")
}
