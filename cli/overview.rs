//! The help of `onboard` without a command: all commands, by what they are for.

use std::fmt::Write as _;

use clap::{Command, Subcommand as _};

use crate::OnboardCommand;

/// Commands by what they are for. Each is in one group.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Bring up a model", &["add-model", "new", "show", "check", "list", "synth"]),
    ("Prove it", &["parity", "engine"]),
    ("Convert it", &["convert", "verify", "imatrix", "jobs"]),
    ("Run it", &["run", "serve", "bench"]),
    ("Serve it with other engines", &["launch", "formats", "compile", "plugin", "bench-serve"]),
    ("More", &["help", "skill", "completions", "man"]),
];

/// Returns the template of the help: what the program is, its commands in groups, its options and examples.
pub(crate) fn template() -> String {
    let commands = OnboardCommand::augment_subcommands(Command::new("onboard"));
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "\n{heading}:");
        for name in names {
            let about = commands.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:<13}{about}");
        }
    }
    text + "\nOptions:\n{options}{after-help}"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::OnboardCli;

    #[test]
    fn each_command_is_in_one_group_and_on_one_line() {
        let mut named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        named.sort_unstable();
        let command = OnboardCli::command();
        let mut names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(named, names);
        let help = OnboardCli::command().render_help().to_string();
        assert!(help.lines().count() <= 56, "one screen:\n{help}");
        for line in help.lines() {
            assert!(line.len() <= 100, "{line}");
        }
    }
}
