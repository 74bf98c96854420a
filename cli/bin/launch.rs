//! Starts `onboard` under another name: one program contains all commands.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Becomes `onboard NAME ...`, with the arguments of this process.
pub(crate) fn onboard(name: &str) -> ExitCode {
    let program = match beside() {
        Ok(program) => program,
        Err(error) => return refuse(&format!("cannot find the folder of `{name}`: {error}")),
    };
    let mut command = Command::new(&program);
    command.arg0_or_subcommand(name).args(std::env::args_os().skip(1));
    let error = become_it(&mut command);
    match error {
        Ok(code) => code,
        Err(error) => refuse(&format!(
            "`{name}` is a part of `onboard` and cannot start `{}`: {error}; install both in one folder",
            program.display()
        )),
    }
}

/// Returns the path of `onboard` in the folder of this program.
fn beside() -> std::io::Result<PathBuf> {
    let file = format!("onboard{}", std::env::consts::EXE_SUFFIX);
    Ok(std::env::current_exe()?.with_file_name(file))
}

fn refuse(message: &str) -> ExitCode {
    writeln!(std::io::stderr(), "error: {message}").ok();
    ExitCode::from(2)
}

trait SubcommandExt {
    fn arg0_or_subcommand(&mut self, name: &str) -> &mut Self;
}

#[cfg(unix)]
impl SubcommandExt for Command {
    fn arg0_or_subcommand(&mut self, name: &str) -> &mut Self {
        use std::os::unix::process::CommandExt as _;
        self.arg0(name)
    }
}

#[cfg(not(unix))]
impl SubcommandExt for Command {
    fn arg0_or_subcommand(&mut self, name: &str) -> &mut Self {
        self.arg(name)
    }
}

/// Replaces this process, so that signals and exit codes are those of `onboard`.
#[cfg(unix)]
fn become_it(command: &mut Command) -> std::io::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

/// Runs `onboard` and waits for it, on systems that cannot replace a process.
#[cfg(not(unix))]
fn become_it(command: &mut Command) -> std::io::Result<ExitCode> {
    let status = command.status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(2)))
}
