//! The `parity` command: the same as `onboard parity`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::parity()
}
