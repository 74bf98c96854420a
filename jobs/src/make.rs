//! Makes a piece: runs its command, and records its files and inputs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::division::DividedCommand;
use crate::error::{Error, bail, ensure};
use crate::records::{PieceState, number_ranges, unmade_numbers, unmade_reasons};

/// Result of the command of a piece.
#[derive(Debug)]
pub struct CommandRun {
    /// True if the command ended well.
    pub succeeded: bool,
    /// Files that it wrote, also those of an earlier run that are complete.
    pub written: Vec<PathBuf>,
}

/// Result of an attempt to make a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceOutcome {
    /// An earlier run has made the piece.
    MadeBefore,
    /// The piece is made and recorded.
    Made,
    /// The command of the piece did not end well.
    Failed,
}

impl DividedCommand {
    /// Makes a piece, unless it is made. `spoiled` takes the reason why a piece is made again, and `run` runs the words
    /// of the piece.
    pub fn make(
        &self,
        number: usize,
        spoiled: impl FnOnce(&str),
        run: impl FnOnce(&[String]) -> CommandRun,
    ) -> Result<PieceOutcome, Error> {
        ensure!(
            (1..=self.count).contains(&number),
            "piece {number} is not there; the command is divided into {} pieces",
            self.count
        );
        let inputs = self.inputs()?;
        let state = self.state_of(number, &inputs)?;
        if matches!(state, PieceState::Made) {
            return Ok(PieceOutcome::MadeBefore);
        }
        self.refuse_output()?;
        let claimed = self.begin()?;
        if let PieceState::Spoiled(why, files) = state {
            spoiled(&why);
            files.iter().try_for_each(|file| remove(file))?;
        }
        let CommandRun { succeeded, written } = run(&self.piece(number)?);
        if !succeeded {
            if claimed {
                self.give_up();
            }
            return Ok(PieceOutcome::Failed);
        }
        if let Some(product) = self.product(number).filter(|product| !product.exists()) {
            bail!("piece {number} ended well, but `{}` is not there", product.display());
        }
        if self.inputs()? != inputs {
            written.iter().try_for_each(|file| remove(file))?;
            bail!(
                "the inputs changed while piece {number} was made, so its files were removed; run it again"
            );
        }
        self.note_made(number, inputs, written)?;
        Ok(PieceOutcome::Made)
    }

    /// Returns the words of the command that joins the pieces, all of which have to be made.
    pub fn merge_of_made(&self) -> Result<Vec<String>, Error> {
        let left = self.left()?;
        ensure!(
            left.is_empty(),
            "{} of {} pieces are not made: {}; run them first{}",
            left.len(),
            self.count,
            number_ranges(&unmade_numbers(&left)),
            unmade_reasons(&left)
        );
        self.merge()
    }
}

/// Removes a file, which may be gone already.
fn remove(path: &Path) -> Result<(), Error> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
