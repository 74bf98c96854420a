//! Products of block weights and rows in 8 bits: the arithmetic `q8`.
//!
//! Rows of `x` are rounded to blocks of 32 codes of 8 bits with one scale (`input`). Weights stay in their
//! levels and are multiplied as integers, sixteen rows side by side (`pack`).
//!
//! **One order of additions.** The products of a group (16 or 32 values with one scale) are added as integers,
//! which is exact. An output element is `sum = fma(group, scale * x_scale, sum)`, group after group from the
//! first one on; a format with minima subtracts `fma(-min, x_scale * x_sum, sum)` after each group. Neither
//! rows, threads, tiles nor instruction sets change a bit, so chunked prefill equals decode.
//!
//! The reasons are in [decision 54](../../../docs/decisions/0054-products-in-integers.md).

mod form;
mod input;
mod multiply;
mod pack;
mod panel;

pub use multiply::{IntegerProduct, products, products_on};
pub use pack::PackedMatrix;

#[cfg(test)]
mod tests;
