//! Specs from records of what a class computes.

pub mod calls;
mod carry;
pub mod graph;
pub mod hole;
pub mod layout;
pub mod names;
pub mod number;
pub mod operand;
pub mod origin;
pub mod read;
pub mod record;
mod reference;
pub mod roll;
pub mod rules;
mod sheet;
pub mod wholes;
pub mod write;
