//! Formats a launch as a systemd unit.

use std::fmt::Write as _;
use std::path::Path;

use super::plan::PlannedLaunch;
use super::{command, show};

/// Returns the text of the unit. Paths are absolute, because a unit has no working folder.
pub fn systemd(launched: &PlannedLaunch) -> String {
    let model = model_path(launched);
    let mut words = command::words(launched, &model).into_iter().map(|word| command::unit(&word));
    // systemd requires an absolute path of the command: `env` looks it up in PATH.
    let first = words.next().unwrap_or_default();
    let program = if first.starts_with('/') { first } else { format!("/usr/bin/env {first}") };
    let mut text = format!(
        "[Unit]\nDescription={} serving {}\nAfter=network-online.target\nWants=network-online.target\n\n\
         [Service]\nType=exec\n",
        launched.sheet.engine,
        launched.model.replace('%', "%%").replace(char::is_control, " "),
    );
    for (name, value) in command::environment(launched) {
        let _ = writeln!(text, "Environment={}", command::unit_setting(&format!("{name}={value}")));
    }
    let _ = writeln!(text, "ExecStart={program} {}", words.collect::<Vec<_>>().join(" "));
    text.push_str("Restart=on-failure\nRestartSec=10\n\n[Install]\nWantedBy=multi-user.target\n");
    for message in &launched.outcome.facts {
        let _ = writeln!(text, "# {}", show::message_text(message));
    }
    text
}

/// Returns the absolute path of a local model.
pub(crate) fn model_path(launched: &PlannedLaunch) -> String {
    let absolute_path =
        fs_err::canonicalize(Path::new(&launched.model)).ok().filter(|_| launched.local);
    absolute_path.map_or_else(|| launched.model.clone(), |path| path.display().to_string())
}
