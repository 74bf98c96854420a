//! Records of finished pieces: a small file for each, in a folder that all machines share.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use registry::file;
use serde::{Deserialize, Serialize};

use super::division::DividedCommand;
use crate::write;

const SCHEMA: &str = "onboard-jobs/1";

/// Record of a finished piece.
#[derive(Debug, Serialize, Deserialize)]
struct PieceRecord {
    schema: String,
    /// Hash of the command and of the number of pieces.
    identity: String,
    piece: usize,
    of: usize,
    command: Vec<String>,
}

impl DividedCommand {
    fn record(&self, number: usize) -> PathBuf {
        self.state.join(format!("piece-{number}-of-{}.json", self.count))
    }

    /// True if a piece was made by this command and what it made is there. A record of another command is
    /// an error.
    pub(super) fn is_made(&self, number: usize) -> Result<bool> {
        let path = self.record(number);
        if !path.exists() {
            return Ok(false);
        }
        let place = path.display();
        let bytes = file::read(&path, file::CONFIG)?;
        let found: PieceRecord = serde_json::from_slice(&bytes)
            .with_context(|| format!("`{place}` is no record of a piece; remove it"))?;
        ensure!(
            found.schema == SCHEMA,
            "`{place}` has the schema `{}`; expected `{SCHEMA}`",
            found.schema
        );
        ensure!(
            found.identity == self.identity(),
            "`{place}` is of another command, `{}`; remove the folder, or name another with --state",
            found.command.join(" ")
        );
        ensure!(
            (found.piece, found.of) == (number, self.count),
            "`{place}` is the record of piece {} of {}, a copy under another name; remove it",
            found.piece,
            found.of
        );
        Ok(self.product(number).is_none_or(|product| product.exists()))
    }

    /// Writes the record of a finished piece.
    pub(super) fn note_made(&self, number: usize) -> Result<()> {
        let record = PieceRecord {
            schema: SCHEMA.to_owned(),
            identity: self.identity(),
            piece: number,
            of: self.count,
            command: self.words.clone(),
        };
        let text = format!("{}\n", serde_json::to_string(&record)?);
        write::atomic(&self.record(number), text.as_bytes())
    }

    /// Returns the numbers of the pieces that are left. Records of other divisions are an error.
    pub(super) fn left(&self) -> Result<Vec<usize>> {
        self.refuse_foreign()?;
        let mut left = Vec::new();
        for number in 1..=self.count {
            if !self.is_made(number)? {
                left.push(number);
            }
        }
        Ok(left)
    }

    fn refuse_foreign(&self) -> Result<()> {
        let Ok(entries) = fs_err::read_dir(&self.state) else { return Ok(()) };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let inner = name.strip_prefix("piece-").and_then(|rest| rest.strip_suffix(".json"));
            let Some((number, count)) = inner.and_then(|inner| inner.split_once("-of-")) else {
                continue;
            };
            let own = number.parse().is_ok_and(|number| (1..=self.count).contains(&number))
                && count == self.count.to_string();
            if !own {
                bail!(
                    "`{}` is of a division into {count} pieces; expected {}. Remove the folder, or \
                     name another with --state",
                    self.state.join(&name).display(),
                    self.count
                );
            }
        }
        Ok(())
    }
}

/// Shows numbers as ranges: `1, 3-5`.
pub(super) fn ranges(numbers: &[usize]) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut rest = numbers;
    while let Some(&first) = rest.first() {
        let len = rest.iter().enumerate().take_while(|(n, number)| first + n == **number).count();
        shown.push(match len {
            1 => first.to_string(),
            _ => format!("{first}-{}", first + len - 1),
        });
        rest = &rest[len..];
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        for (numbers, text) in
            [(&[][..], ""), (&[3], "3"), (&[1, 2], "1-2"), (&[1, 3, 4, 5, 9], "1, 3-5, 9")]
        {
            assert_eq!(ranges(numbers), text);
        }
    }
}
