//! Engines by name: a driver of this process, or a command that implements `docs/engine-protocol.md`.

mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use converter::MeasuringDevice;
use endpoints::{EndpointOptions, TrustedCertificates};
use engine::catalog::CatalogEntry;
use engine::drivers::{DRIVERS, EngineDriver};
use engine::{Engine, NativeEngine};
use parity::Dump;

use crate::findings::engine_error;

pub(crate) use start::{ChildCommand, python};

/// Name and settings of an engine.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArgs {
    /// The engine: a name that `onboard engine list` shows, a path with a slash to a Python file or a program that
    /// speaks the engine protocol, or for `parity check` the address of a server
    #[arg(long, value_name = "ENGINE", default_value = NATIVE)]
    pub engine: String,
    /// A setting of an engine that runs in a process of its own, or of a server's client (repeatable)
    #[arg(long = "engine-option", value_name = "KEY=VALUE")]
    pub options: Vec<String>,
    /// Seconds that such an engine may take for one answer
    #[arg(long = "engine-timeout", value_name = "SECONDS", default_value = "600", value_parser = parse_seconds)]
    pub timeout: Duration,
    #[command(flatten)]
    pub device: DeviceArgs,
}

const NATIVE: &str = "native";

/// The native engine on a GPU.
const CUDA: &str = "cuda";

/// Where the native engine runs.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct DeviceArgs {
    /// Where the native engine runs: `cuda` is the one visible NVIDIA GPU, as with `--engine cuda` where there is
    /// that flag
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t)]
    device: DeviceName,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DeviceName {
    #[default]
    Cpu,
    Cuda,
}

impl DeviceArgs {
    /// True for the CPU.
    pub(crate) fn is_cpu(self) -> bool {
        self.device == DeviceName::Cpu
    }

    /// Returns the device for a library that measures.
    pub(crate) fn of_measurement(self) -> MeasuringDevice {
        if self.is_cpu() { MeasuringDevice::Cpu } else { MeasuringDevice::Gpu }
    }

    /// Keeps compiled kernels, if the device needs some.
    pub(crate) fn prepare(self) {
        if !self.is_cpu() {
            keep_kernels();
        }
    }

    /// Creates the native engine on the device, which is opened now.
    pub(crate) fn engine(self) -> Result<NativeEngine> {
        if self.is_cpu() {
            return Ok(NativeEngine::new());
        }
        keep_kernels();
        engine::drivers::gpu().map_err(engine_error)
    }

    /// Creates the native engine on the device.
    pub(crate) fn native(self) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.engine()?))
    }
}

impl Default for EngineArgs {
    fn default() -> Self {
        let timeout = Duration::from_secs(600);
        let engine = NATIVE.to_owned();
        let device = DeviceArgs::default();
        Self { engine, options: Vec::new(), timeout, device }
    }
}

/// Parses a duration of at least 0.05 seconds and at most a day.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.05..=86400.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is no time; expected seconds, 0.05 to 86400"))
}

/// Engine that was found by its name.
pub(crate) enum ResolvedEngine {
    /// Engine in this process.
    InProcess(&'static EngineDriver),
    /// Engine in a child process.
    Child(Box<ChildCommand>),
    /// Server behind HTTP, at this address.
    Server(String),
}

/// True for the address of a server.
fn is_address(name: &str) -> bool {
    name.starts_with("http://") || name.starts_with("https://")
}

impl EngineArgs {
    /// True for the engine of this program that runs unless another is chosen.
    pub(crate) fn is_native(&self) -> bool {
        self.name() == NATIVE
    }

    /// True for the native engine, on the CPU or on a GPU.
    pub(crate) fn is_own(&self) -> bool {
        [NATIVE, CUDA].contains(&self.name())
    }

    /// Returns the name of the engine, which the device may decide.
    pub(crate) fn name(&self) -> &str {
        if self.engine == NATIVE && !self.device.is_cpu() { CUDA } else { &self.engine }
    }

    /// Finds the engine.
    pub(crate) fn find(&self) -> Result<ResolvedEngine> {
        let name = self.name();
        ensure!(
            self.device.is_cpu() || name == CUDA,
            "--device is a choice of the native engine; `{name}` has settings of its own"
        );
        if let Some(driver) = DRIVERS.into_iter().find(|driver| driver.name == name) {
            ensure!(
                self.options.is_empty(),
                "engine `{name}` takes no --engine-option; its settings are flags of the command"
            );
            return Ok(ResolvedEngine::InProcess(driver));
        }
        if is_address(name) {
            return Ok(ResolvedEngine::Server(name.to_owned()));
        }
        if name.contains(['/', std::path::MAIN_SEPARATOR]) {
            return ChildCommand::at_path(Path::new(name), self)
                .map(|child| ResolvedEngine::Child(Box::new(child)));
        }
        let entries = catalog()?;
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let near = if Path::new(name).is_file() {
                format!(". For the file here, write ./{name}")
            } else {
                String::new()
            };
            bail!("there is no engine `{name}`; there are: {}{near}", names.join(", "));
        };
        ChildCommand::of_entry(entry, self).map(|child| ResolvedEngine::Child(Box::new(child)))
    }

    /// Creates an engine of this process that runs resolved models.
    pub(crate) fn of_models(&self) -> Result<Box<dyn Engine>> {
        let name = self.name();
        match self.find()? {
            ResolvedEngine::InProcess(driver) if driver.describe.is_none() => start(driver, 0),
            ResolvedEngine::InProcess(_) => {
                bail!("engine `{name}` opens GGUF files and builds its own graph; it runs no specs")
            }
            ResolvedEngine::Child(_) => {
                bail!("engine `{name}` builds its own graph; it runs no specs")
            }
            ResolvedEngine::Server(_) => {
                bail!("`{name}` is a server, which `parity check` compares; it runs no specs")
            }
        }
    }
}

/// Creates the native engine.
pub(crate) fn native() -> Result<Box<dyn Engine>> {
    let driver = DRIVERS[0];
    start(driver, 0)
}

/// Creates an engine of this process with room for a number of positions.
pub(crate) fn start(driver: &'static EngineDriver, context: usize) -> Result<Box<dyn Engine>> {
    keep_kernels();
    let make = driver
        .start
        .map_err(|how| anyhow::anyhow!("this build has no engine `{}`; {how}", driver.name))?;
    Ok(make(context))
}

/// Keeps kernels of GPUs that are compiled.
fn keep_kernels() {
    #[cfg(feature = "cuda")]
    if let Some(folder) = cache_folder() {
        engine::device::cuda::keep_compiled_in(&folder);
    }
}

/// Returns the folder of kernels that were compiled: `onboard/kernels` of the user's cache folder.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels of GPUs are kept"))]
fn cache_folder() -> Option<PathBuf> {
    let cache = folder_variable("XDG_CACHE_HOME");
    let cache = cache.or_else(|| Some(folder_variable("HOME")?.join(".cache")))?;
    Some(cache.join("onboard/kernels"))
}

/// Lists all engines. Sheets of the user lie in ONBOARD_ENGINES, else in `onboard/engines` of the configuration folder.
pub(crate) fn catalog() -> Result<Vec<CatalogEntry>> {
    let folder = folder_variable("ONBOARD_ENGINES").or_else(|| {
        let config = folder_variable("XDG_CONFIG_HOME");
        let config = config.or_else(|| Some(folder_variable("HOME")?.join(".config")))?;
        Some(config.join("onboard/engines"))
    });
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(engine::catalog::catalog(folder.as_deref(), &path)?)
}

/// Returns the folder that an environment variable names.
fn folder_variable(key: &str) -> Option<PathBuf> {
    std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// File and engine, with room for the comparison.
pub(crate) struct OpenedFile {
    /// Engine that opened the file.
    pub engine: Box<dyn Engine>,
    /// The engine's description of the file.
    pub file: engine::drivers::ModelFile,
}

/// Opens a file with an engine that reads files itself.
pub(crate) fn open_file(
    driver: &'static EngineDriver,
    path: &Path,
    dump: &Dump,
) -> Result<OpenedFile> {
    let file = describe(driver, path)?;
    Ok(OpenedFile { engine: start(driver, room(dump))?, file })
}

/// Reads the facts of a file through an engine that opens files itself.
pub(crate) fn describe(
    driver: &'static EngineDriver,
    path: &Path,
) -> Result<engine::drivers::ModelFile> {
    let name = driver.name;
    let place = path.display();
    ensure!(
        path.is_file(),
        "engine `{name}` opens GGUF files, and `{place}` is none; make one: \
         convert {place} --to gguf:f32 -o FILE"
    );
    let describe = driver.describe.context("the engine opens no files")?;
    Ok(describe(path)?)
}

/// Returns the positions that prompts, their continuations and schedules need.
pub(crate) fn room(dump: &Dump) -> usize {
    /// Upper bound on the length of any schedule.
    const MORE: usize = 64;
    let manifest = &dump.manifest;
    let prompts = manifest.prompts.iter().map(|p| p.tokens.len()).max();
    let greedy = manifest.greedy.values().flat_map(|by| by.values()).map(Vec::len).max();
    prompts.unwrap_or(0) + greedy.unwrap_or(0) + MORE
}

/// Returns a server's API key from the default environment variable.
pub(crate) fn api_key() -> Result<Option<String>> {
    variable("ONBOARD_API_KEY")
}

/// Returns an environment variable, unless it is empty.
fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            bail!("the environment variable `{name}` is not UTF-8")
        }
    }
}

/// Sets an option that all clients of servers have. Returns false for another key.
pub(crate) fn set_endpoint(options: &mut EndpointOptions, key: &str, value: &str) -> Result<bool> {
    match key {
        "model" => options.model = Some(value.to_owned()),
        "timeout" => options.answer = parse_seconds(value).map_err(anyhow::Error::msg)?,
        "key-env" => {
            let secret = variable(value)?;
            ensure!(secret.is_some(), "the environment variable `{value}` is not set");
            options.key = secret;
        }
        "ca" => {
            let bytes = registry::file::read(value.as_ref(), registry::file::CONFIG)
                .with_context(|| format!("cannot read `{value}`"))?;
            options.trust = TrustedCertificates::Pem(bytes);
        }
        "insecure" => match value {
            "true" => options.trust = TrustedCertificates::Any,
            "false" => {}
            _ => bail!("`{value}` is neither `true` nor `false`"),
        },
        _ => return Ok(false),
    }
    Ok(true)
}
