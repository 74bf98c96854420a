//! Q8_K: form of activations while a model runs; no file has it.

use super::declaration::BlockDeclaration;

pub(super) const Q8_K: BlockDeclaration = BlockDeclaration::new("Q8_K", 15, 256, 292);
