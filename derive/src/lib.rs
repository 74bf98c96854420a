//! Specs from records of what a class computes.

pub mod calls;
pub mod graph;
pub mod holes;
pub mod layout;
pub mod number;
pub mod operand;
pub mod read;
pub mod record;
pub mod rules;
pub mod wholes;
pub mod names;
pub mod roll;
pub mod write;
