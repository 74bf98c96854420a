//! Checks, diagnoses and mutants of small models.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod check;
mod diagnose;
mod fake;
mod mutate;
