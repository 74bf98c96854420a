//! Specs from text to model.
