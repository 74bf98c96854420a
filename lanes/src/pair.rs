//! Vectors of twice as many lanes.

use std::ops::{Add, Div, Mul, Sub};

/// Two vectors, that of the lower lanes first.
#[derive(Clone, Copy)]
pub(crate) struct Pair<F>(pub(crate) F, pub(crate) F);

macro_rules! lanewise {
    ($($trait:ident $method:ident),*) => {$(
        impl<F: $trait<Output = F>> $trait for Pair<F> {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(self.0.$method(other.0), self.1.$method(other.1))
            }
        }
    )*};
}
lanewise!(Add add, Sub sub, Mul mul, Div div);
