//! Handles SIGINT (Ctrl-C) and SIGTERM: removes unfinished files, then exits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static UNFINISHED: Mutex<BTreeMap<PathBuf, Removal>> = Mutex::new(BTreeMap::new());

/// Part of a path that is removed.
#[derive(Debug, Clone, Copy)]
enum Removal {
    /// File, or unfinished files of a folder.
    PartFiles,
    /// Folder with all its contents.
    Folder,
}

/// Message that is shown when the user stops the command.
static HINT: Mutex<&str> = Mutex::new("");

/// Sets the hint on resuming that is shown after a stop.
pub(crate) fn hint(text: &'static str) {
    *HINT.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// Action of the first signal, in place of the stop.
static FIRST: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// First signal; 0 for none.
static REQUESTED: AtomicI32 = AtomicI32::new(0);

/// Sets the action of the first signal. The second one stops the command.
pub(crate) fn on_first(action: impl FnOnce() + Send + 'static) {
    *FIRST.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
}

/// Returns the signal that asked for a stop and was left to the action of [`on_first`], if any.
pub(crate) fn requested() -> Option<i32> {
    Some(REQUESTED.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// Ends the action of [`on_first`], used or not: the next signal stops the command.
pub(crate) fn forget() {
    *FIRST.lock().unwrap_or_else(PoisonError::into_inner) = None;
    REQUESTED.store(0, Ordering::SeqCst);
}

/// Installs handlers that remove unfinished files when a signal stops the command. The exit code is the
/// shell's for the signal: 130 for SIGINT, 143 for SIGTERM.
///
/// SIGHUP keeps its default action, so that `nohup` works. A process that runs several commands uses one
/// waiting thread.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A parent may ignore SIGCHLD, as workers of Ray do, and its children inherit that: the exit codes of
        // their own children are then lost. A handler ends this, here and in children.
        drop(signal_hook::flag::register(SIGCHLD, Arc::default()));
        wait_for_signals();
    });
}

/// Starts the waiting thread, which installs the handlers itself. If either fails, a signal still ends the
/// process, and only a `.part` file may remain.
fn wait_for_signals() {
    drop(std::thread::Builder::new().name("signals".to_owned()).spawn(handle_signals));
}

/// Installs the handlers, and acts on each signal.
fn handle_signals() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    for signal in signals.forever() {
        let action = FIRST.lock().unwrap_or_else(PoisonError::into_inner).take();
        match action {
            Some(action) => {
                REQUESTED.store(signal, Ordering::SeqCst);
                action();
            }
            None => stop(signal),
        }
    }
}

fn stop(signal: i32) -> ! {
    engine::child::end_all();
    let paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    for (path, goes) in paths.iter() {
        match goes {
            Removal::PartFiles => remove(path),
            Removal::Folder => drop(fs_err::remove_dir_all(path)),
        }
    }
    let hint = HINT.lock().unwrap_or_else(PoisonError::into_inner);
    crate::term::note(&format!("stopped{hint}"));
    std::process::exit(128 + signal);
}

/// Removes a file, or the unfinished files of a folder. Missing files are ignored.
fn remove(path: &Path) {
    if !path.is_dir() {
        fs_err::remove_file(path).ok();
        return;
    }
    for entry in fs_err::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|end| end == "part") {
            fs_err::remove_file(entry.path()).ok();
        }
    }
}

/// Guard that unregisters its path when dropped.
#[derive(Debug)]
pub(crate) struct RemovalGuard(PathBuf);

/// Registers a file, or every `.part` file of a folder, for removal. The removal takes place if the command
/// is stopped before the guard is dropped.
pub(crate) fn watch(path: &Path) -> RemovalGuard {
    watch_for(path, Removal::PartFiles)
}

/// Registers a folder for removal with all its contents if the command is stopped before the guard is
/// dropped.
pub(crate) fn watch_whole(path: &Path) -> RemovalGuard {
    watch_for(path, Removal::Folder)
}

fn watch_for(path: &Path, goes: Removal) -> RemovalGuard {
    let mut paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    paths.insert(path.to_owned(), goes);
    RemovalGuard(path.to_owned())
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
