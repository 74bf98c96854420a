//! Table of the commands that can be divided into pieces.

use jobs::DivisibleCommand;

/// Commands that can be divided.
pub(super) const KINDS: &[DivisibleCommand] = &[
    DivisibleCommand {
        name: &["convert"],
        piece: &["--shard", "{i}/{n}", "?--resume"],
        piece_output: None,
        product: None,
        refused: &["shard", "plan"],
        merge_writes: false,
        merge: &["convert", "merge-check", "{set}"],
        result: "the set of files is checked",
    },
    DivisibleCommand {
        name: &["parity", "dump"],
        piece: &["--pieces", "{output}.pieces", "--piece", "{i}/{n}"],
        piece_output: None,
        product: Some("{output}.pieces/piece-{i}-of-{n}.json"),
        refused: &["piece", "pieces", "merge", "plan", "script", "judge"],
        merge_writes: true,
        merge: &["{command}", "--pieces", "{output}.pieces", "--merge"],
        result: "the dump is written",
    },
    DivisibleCommand {
        name: &["imatrix"],
        piece: &["--shard", "{i}/{n}"],
        piece_output: Some("{output}.{i}-of-{n}.part"),
        product: Some("{output}.{i}-of-{n}.part"),
        refused: &["shard"],
        merge_writes: true,
        merge: &["imatrix", "merge", "{products}", "-o", "{output}", "{force}"],
        result: "the file is written",
    },
];
