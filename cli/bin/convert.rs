//! The `convert` command: the same as `onboard convert`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::convert()
}
