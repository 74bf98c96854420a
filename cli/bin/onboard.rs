//! The `onboard` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::onboard()
}
