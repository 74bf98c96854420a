//! Catalog of named engines: drivers, built-in sheets, sheets of the user, programs on the PATH.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use engine::capability::{EngineKind, EngineSheet};
use engine::drivers::DRIVERS;
use registry::file;

/// Prefix of engines among the programs on the PATH.
const PREFIX: &str = "onboard-engine-";

/// Named engine.
#[derive(Debug)]
pub(crate) struct CatalogEntry {
    /// Name of the engine.
    pub name: String,
    /// Sheet of the engine; none for a program on the PATH.
    pub sheet: Option<EngineSheet>,
    /// File of the sheet, or the program; none for a built-in sheet.
    pub place: Option<PathBuf>,
}

/// Lists all engines. Sheets of the user take precedence over built-in ones and over programs on the PATH.
pub(crate) fn catalog() -> Result<Vec<CatalogEntry>> {
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
    for entry in own_sheets()?.into_iter().chain(built_in).chain(programs()) {
        if seen.insert(entry.name.clone()) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// Returns the folder of the user's sheets: ONBOARD_ENGINES, else `onboard/engines` of the configuration
/// folder.
fn folder() -> Option<PathBuf> {
    super::folder_variable("ONBOARD_ENGINES").or_else(|| {
        let config = super::folder_variable("XDG_CONFIG_HOME");
        let config = config.or_else(|| Some(super::folder_variable("HOME")?.join(".config")))?;
        Some(config.join("onboard/engines"))
    })
}

fn own_sheets() -> Result<Vec<CatalogEntry>> {
    let Some(folder) = folder().filter(|folder| folder.is_dir()) else { return Ok(Vec::new()) };
    let mut entries = Vec::new();
    for path in listed(&folder, |name| Path::new(name).extension() == Some("yaml".as_ref())) {
        let text = file::read_text(&path, file::SPEC)?;
        let place = path.display();
        let sheet = EngineSheet::parse(&text).map_err(|e| anyhow!("the sheet `{place}`: {e}"))?;
        if sheet.kind != EngineKind::Child {
            return Err(anyhow!(
                "the sheet `{place}` is of an engine in process, which has to be built in; expected `kind: child`"
            ));
        }
        let full = fs_err::canonicalize(&path).context("cannot find the sheet")?;
        entries.push(CatalogEntry {
            name: sheet.engine.clone(),
            sheet: Some(sheet),
            place: Some(full),
        });
    }
    Ok(entries)
}

fn programs() -> Vec<CatalogEntry> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut entries = Vec::new();
    for folder in std::env::split_paths(&path) {
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
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_listed))
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths
}

/// True if a file may be executed.
pub(super) fn is_program(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    }
    #[cfg(not(unix))]
    path.is_file()
}
