//! Reference script: a Python package, and the single file with which it is shipped.
//!
//! Only this script needs torch ([decision 10](../../docs/decisions/0010-reference-script-and-dump.md)).

/// Script as it lies beside its package, with a place for the package's files.
const ENTRY: &str = include_str!("../reference/dump.py");
/// Line of the script that the files replace.
const PLACE: &str = "FILES: dict[str, str] = {}\n";

/// Reads files of the package by their names.
macro_rules! package {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../reference/onboard_dump/", $name)))),+]
    };
}

/// Files of the Python package `onboard_dump`, by name.
pub const PACKAGE: &[(&str, &str)] = package![
    "__init__.py",
    "audit.py",
    "cache_steps.py",
    "checkpoint.py",
    "chosen.py",
    "classes.py",
    "command.py",
    "distances.py",
    "dump_steps.py",
    "encoder.py",
    "ensemble.py",
    "experts.py",
    "failures.py",
    "files.py",
    "generated.py",
    "given_prompts.py",
    "idle.py",
    "images.py",
    "inputs.py",
    "judge.py",
    "layer_choice.py",
    "layers.py",
    "loading.py",
    "lockstep.py",
    "manifest.py",
    "masks.py",
    "members.py",
    "nextn.py",
    "patches.py",
    "pieces.py",
    "prompts.py",
    "record.py",
    "results.py",
    "rounding.py",
    "run.py",
    "runner.py",
    "states.py",
    "store.py",
    "symbols.py",
    "taps.py",
    "trace.py",
    "trace_configs.py",
    "trace_facts.py",
    "trace_steps.py",
    "units.py",
    "verdicts.py",
    "watch.py",
    "weights.py",
    "wide.py",
    "work.py",
];

/// Returns the script as one file, so that it can be copied to the machine with the model.
pub fn text() -> String {
    let files =
        PACKAGE.iter().map(|(name, text)| format!("    \"onboard_dump/{name}\": r'''{text}''',\n"));
    let files: Vec<String> = files.collect();
    let filled = format!("FILES: dict[str, str] = {{\n{}}}\n", files.concat());
    ENTRY.replacen(PLACE, &filled, 1)
}

/// Script that records chat templates and the tokenizer, which runs by itself.
pub const CHAT: &str = include_str!("../reference/chat.py");
