//! Commands of engines: a Python file, a program, or the command of a sheet.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::EngineLaunch;
use crate::capability::EngineSheet;
use crate::catalog::{CatalogEntry, is_program};

/// Reason why an engine has no command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineCommandError {
    /// There is no file.
    #[error("{why} `{}`; an engine is a name, a Python file or a program", path.display())]
    NoFile {
        /// State of the path.
        why: &'static str,
        /// Path that was given.
        path: PathBuf,
    },
    /// The file cannot be run.
    #[error(
        "`{}` is neither a Python file (.py) nor a program; chmod +x it, or give the program that runs it",
        .0.display()
    )]
    NoProgram(PathBuf),
    /// The sheet names no command.
    #[error("the engine `{0}` has no command")]
    NoCommand(String),
    /// An option has no value.
    #[error("the option `engine-option` `{0}`: expected KEY=VALUE")]
    Option(String),
    /// A file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Settings of a command.
#[derive(Debug, Clone, Copy)]
pub struct CommandSettings<'a> {
    /// Interpreter of Python files.
    pub python: &'a OsStr,
    /// Folders of Python's modules, as the environment has them.
    pub python_path: &'a OsStr,
    /// Folder of the modules that engines import, filled by [`write_modules`].
    pub files: &'a Path,
    /// Options of the engine, `KEY=VALUE`.
    pub options: &'a [String],
    /// Time that one verb may take.
    pub patience: Duration,
}

/// Writes the modules that engines import: the shipped plugins, and the package `onboard_dump`, with which plugins read
/// taps and states.
pub fn write_modules(folder: &Path, package: &[(&str, &str)]) -> io::Result<()> {
    for (file, text) in registry::engines::plugins() {
        fs_err::write(folder.join(file), text)?;
    }
    let home = folder.join("onboard_dump");
    fs_err::create_dir(&home)?;
    package.iter().try_for_each(|(file, text)| fs_err::write(home.join(file), text))
}

/// True if a file is run by the interpreter of Python.
fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "py")
}

impl EngineLaunch {
    /// Finds an engine at a path: a Python file, or a program.
    pub fn at_path(
        name: &str,
        path: &Path,
        settings: CommandSettings<'_>,
    ) -> Result<Self, EngineCommandError> {
        if !path.is_file() {
            let why = if path.is_dir() { "a folder is no engine:" } else { "there is no file" };
            return Err(EngineCommandError::NoFile { why, path: path.to_owned() });
        }
        let full = fs_err::canonicalize(path)?;
        let words = if is_python(&full) {
            vec![settings.python.to_owned(), full.into_os_string()]
        } else if is_program(&full) {
            vec![full.into_os_string()]
        } else {
            return Err(EngineCommandError::NoProgram(path.to_owned()));
        };
        Self::of_words(name, words, None, settings)
    }

    /// Finds an engine that has a sheet, or is on the PATH.
    pub fn of_entry(
        entry: &CatalogEntry,
        settings: CommandSettings<'_>,
    ) -> Result<Self, EngineCommandError> {
        let name = &entry.name;
        let Some(sheet) = &entry.sheet else {
            let program = entry.place.iter().map(|place| place.clone().into_os_string());
            return Self::of_words(name, program.collect(), None, settings);
        };
        if let Some(plugin) = &sheet.plugin {
            let plugin = settings.files.join(plugin).into_os_string();
            let words = vec![settings.python.to_owned(), plugin];
            return Self::of_words(name, words, Some(sheet), settings);
        }
        let home = entry.place.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
        let words = sheet.command.iter().enumerate().map(|(n, word)| {
            // File names are relative to the sheet's folder; bare words are programs of the PATH and
            // arguments.
            let path = home.join(word);
            let named = word.contains('/') || n > 0 && path.is_file();
            if named { path.into_os_string() } else { OsString::from(word) }
        });
        let mut words: Vec<OsString> = words.collect();
        if words.first().is_some_and(|first| is_python(Path::new(first))) {
            words.insert(0, settings.python.to_owned());
        }
        Self::of_words(name, words, Some(sheet), settings)
    }

    fn of_words(
        name: &str,
        words: Vec<OsString>,
        sheet: Option<&EngineSheet>,
        settings: CommandSettings<'_>,
    ) -> Result<Self, EngineCommandError> {
        let CommandSettings { python, python_path, files, .. } = settings;
        let mut words = words.into_iter();
        let program = words.next().ok_or_else(|| EngineCommandError::NoCommand(name.to_owned()))?;
        let mut options = BTreeMap::new();
        for option in settings.options {
            let Some((key, value)) = option.split_once('=') else {
                return Err(EngineCommandError::Option(option.clone()));
            };
            options.insert(key.to_owned(), value.to_owned());
        }
        // A module beside the engine takes precedence; this one is for engines without it.
        let folders = std::env::split_paths(python_path).chain([files.to_owned()]);
        let folders = std::env::join_paths(folders.filter(|folder| !folder.as_os_str().is_empty()));
        let install = sheet.map_or_else(|| "PACKAGE".to_owned(), |s| s.install.join("' '"));
        let shown = python.to_string_lossy();
        let advice = (program == python).then(|| {
            format!(
                "the interpreter is `{shown}` (ONBOARD_PYTHON, or else python3): {shown} -m pip install '{install}', or \
                 set ONBOARD_PYTHON to a python that has it"
            )
        });
        Ok(Self {
            name: name.to_owned(),
            program: PathBuf::from(program),
            arguments: words.collect(),
            variables: vec![(
                "PYTHONPATH".to_owned(),
                folders.unwrap_or_else(|_| python_path.to_owned()),
            )],
            options,
            patience: settings.patience,
            advice,
        })
    }
}
