//! End-to-end tests: the rules of the house, and the commands as a person types them.

mod commands;
mod fake_hub;
mod hub;
mod layering;
mod names;
mod readme;
mod tool;
