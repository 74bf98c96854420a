//! Divides a long command line into pieces that many machines make.
//!
//! A [`DividedCommand`] knows the words of each piece and of the merge. Records in a folder that all machines share
//! name the files of each finished piece and fingerprints of its inputs. [`plan_text`] and [`plan_json`] show a
//! division, [`slurm`] and [`kubernetes`] format it for schedulers. [`DividedCommand::make`] makes one piece.
//! Scheduling is left to other programs ([decision 73](../../docs/decisions/0073-scheduling-by-others.md)).
//!
//! The library never prints and starts no process: the caller parses and runs commands, as a [`CommandHost`] says.
//!
//! ```no_run
//! use onboard_jobs::{CommandHost, DividedCommand};
//!
//! # fn show(host: CommandHost, words: &[String]) -> Result<(), onboard_jobs::Error> {
//! let divided = DividedCommand::new(host, words, 8, None)?;
//! println!("{} pieces are left", divided.left()?.len());
//! println!("the first: {}", divided.piece(1)?.join(" "));
//! # Ok(())
//! # }
//! ```

mod division;
mod error;
mod inputs;
mod kinds;
mod make;
mod plan;
mod records;
mod scripts;
mod words;

pub use division::{CommandHost, DividedCommand};
pub use error::Error;
pub use kinds::DivisibleCommand;
pub use make::{CommandRun, PieceOutcome};
pub use plan::{plan_json, plan_text};
pub use records::{UnmadePiece, number_ranges, unmade_numbers, unmade_reasons};
pub use scripts::{SchedulerOptions, kubernetes, slurm};
pub use words::{ParsedWords, PathArgument, without_dots};
