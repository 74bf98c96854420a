//! Specs and configs that tests write or change.

#![allow(clippy::unwrap_used, reason = "a test stops where it is surprised")]

mod absent;
mod class_tables;
mod configs;
mod edits;
mod inherited;
