//! The `onboard` command; under the name `parity` or `convert`, those.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
