//! The `onboard` command; under the name `parity` or `convert`, that command.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
