//! Catalog of named engines: drivers, built-in sheets, sheets of the user, programs on the PATH.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use registry::file;

use crate::capability::{EngineKind, EngineSheet, SheetError};
use crate::drivers::DRIVERS;

/// Prefix of engines among the programs on the PATH.
const PREFIX: &str = "onboard-engine-";

/// Named engine.
#[derive(Debug)]
pub struct CatalogEntry {
    /// Name of the engine.
    pub name: String,
    /// Sheet of the engine; none for a program on the PATH.
    pub sheet: Option<EngineSheet>,
    /// File of the sheet, or the program; none for a built-in sheet.
    pub place: Option<PathBuf>,
}

/// Reason why a sheet of the user cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// The sheet has a fault.
    #[error("the sheet `{}`: {fault}", place.display())]
    Sheet {
        /// File of the sheet.
        place: PathBuf,
        /// Fault of the sheet.
        fault: SheetError,
    },
    /// The sheet is of an engine that has to be built in.
    #[error(
        "the sheet `{}` is of an engine in process, which has to be built in; expected `kind: child`",
        place.display()
    )]
    Kind {
        /// File of the sheet.
        place: PathBuf,
    },
    /// The sheet cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl CatalogEntry {
    /// Explains why the engine cannot start here, as far as known without starting it. `python` is the
    /// interpreter of Python files.
    pub fn obstacle(&self, python: &OsStr) -> Option<String> {
        let sheet = self.sheet.as_ref()?;
        if let Some(driver) = DRIVERS.iter().find(|d| d.name == self.name) {
            return driver.start.err().map(|lacks| lacks.to_string());
        }
        if sheet.modules.is_empty() {
            return None;
        }
        let words = sheet.modules.join(" ");
        let code = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in sys.argv[1:]))";
        let mut command = Command::new(python);
        command.args(["-c", code]).args(&sheet.modules);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let present = command.status().is_ok_and(|status| status.success());
        let shown = python.to_string_lossy();
        (!present).then(|| {
            format!(
                "`{shown}` lacks {words}: {shown} -m pip install '{}'",
                sheet.install.join("' '")
            )
        })
    }
}

/// Lists all engines; `folder` has sheets of the user, and `path` lists folders of programs.
///
/// Sheets of the user take precedence over built-in ones and over programs on the PATH.
pub fn catalog(folder: Option<&Path>, path: &OsStr) -> Result<Vec<CatalogEntry>, CatalogError> {
    let mut entries: Vec<CatalogEntry> = DRIVERS
        .iter()
        .map(|driver| CatalogEntry {
            name: driver.name.to_owned(),
            sheet: Some(EngineSheet::of(driver.name)),
            place: None,
        })
        .collect();
    let mut seen: BTreeSet<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let children = EngineSheet::builtin().iter().filter(|sheet| sheet.kind == EngineKind::Child);
    let built_in = children.map(|sheet| CatalogEntry {
        name: sheet.engine.clone(),
        sheet: Some(sheet.clone()),
        place: None,
    });
    for entry in user_sheets(folder)?.into_iter().chain(built_in).chain(programs(path)) {
        if seen.insert(entry.name.clone()) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn user_sheets(folder: Option<&Path>) -> Result<Vec<CatalogEntry>, CatalogError> {
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else { return Ok(Vec::new()) };
    let mut entries = Vec::new();
    for path in listed(folder, |name| Path::new(name).extension() == Some("yaml".as_ref())) {
        let text = file::read_text(&path, file::SPEC)?;
        let sheet = EngineSheet::parse(&text)
            .map_err(|fault| CatalogError::Sheet { place: path.clone(), fault })?;
        if sheet.kind != EngineKind::Child {
            return Err(CatalogError::Kind { place: path });
        }
        let full = fs_err::canonicalize(&path)?;
        entries.push(CatalogEntry {
            name: sheet.engine.clone(),
            sheet: Some(sheet),
            place: Some(full),
        });
    }
    Ok(entries)
}

fn programs(path: &OsStr) -> Vec<CatalogEntry> {
    let mut entries = Vec::new();
    for folder in std::env::split_paths(path) {
        for place in listed(&folder, |name| name.starts_with(PREFIX)) {
            let name = place.file_stem().unwrap_or_default().to_string_lossy();
            let name = name.trim_start_matches(PREFIX).to_owned();
            if is_program(&place) && !name.is_empty() {
                entries.push(CatalogEntry { name, sheet: None, place: Some(place) });
            }
        }
    }
    entries
}

/// Returns the wanted files of a folder, sorted by name. An unreadable folder has none.
fn listed(folder: &Path, is_listed: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_listed))
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths
}

/// True if a file may be executed.
pub(crate) fn is_program(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    }
    #[cfg(not(unix))]
    path.is_file()
}
