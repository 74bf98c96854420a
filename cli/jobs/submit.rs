//! Hands a division to the program that schedules it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use jobs::{DividedCommand, SchedulerOptions, kubernetes, plan_json, slurm};

use super::{JobScheduler, SchedulerArgs};
use crate::{CommandOutcome, term};

/// Script that runs pieces as tasks of Ray.
const RAY: &str = include_str!("ray_pieces.py");

/// Submits a division. Ray's tasks are waited for, and the others are handed over.
pub(super) fn submit(
    divided: &DividedCommand,
    on: JobScheduler,
    args: &SchedulerArgs,
) -> Result<CommandOutcome> {
    let options = args.options()?;
    match on {
        JobScheduler::Ray => return ray(divided, args, &options),
        JobScheduler::Slurm => {
            let mut command = Command::new("sbatch");
            feed(&mut command, &slurm(divided, &options)?)?;
        }
        JobScheduler::Kubernetes => {
            let mut command = Command::new("kubectl");
            feed(command.args(["apply", "-f", "-"]), &kubernetes(divided, &options)?)?;
        }
    }
    term::print(&format!("when all pieces are made: {}", divided.merge_line(&options.program)))?;
    Ok(CommandOutcome::Ok)
}

fn ray(
    divided: &DividedCommand,
    args: &SchedulerArgs,
    options: &SchedulerOptions,
) -> Result<CommandOutcome> {
    let folder = tempfile::Builder::new().prefix("onboard-jobs-").tempdir()?;
    let _watched = crate::interrupt::watch_whole(folder.path());
    let script = folder.path().join("ray_pieces.py");
    fs_err::write(&script, RAY)?;
    let mut command = Command::new(&args.python);
    command.arg(&script).args(["--retries", &args.retries.to_string()]);
    command.args(["--cpus", &args.cpus.to_string()]);
    if let Some(address) = &args.address {
        command.args(["--address", address]);
    }
    feed(&mut command, &plan_json(divided, options)?.to_string())?;
    term::print(&format!("all pieces are made; then: {}", divided.merge_line(&options.program)))?;
    Ok(CommandOutcome::Ok)
}

/// Runs a program with a text as its input.
fn feed(command: &mut Command, text: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start `{name}`; is it installed on this machine?"))?;
    let written = child.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
    let status = child.wait()?;
    ensure!(status.success(), "`{name}` failed ({status}); what it said stands above");
    if let Some(Err(error)) = written {
        bail!("`{name}` did not read its input: {error}");
    }
    Ok(())
}
