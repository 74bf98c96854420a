//! Functions whose plain loops are compiled for every instruction set.

use std::marker::PhantomData;

use crate::{Isa, Simd, Task};

/// Plain code of a function of [`widest!`](crate::widest).
#[doc(hidden)]
pub trait PlainLoop<A> {
    /// Result of the function.
    type Output;
    /// Runs the code. It must always be inlined into its caller.
    fn run(arguments: A) -> Self::Output;
}

/// One call of plain code.
struct Call<L, A> {
    arguments: A,
    code: PhantomData<L>,
}

impl<A, L: PlainLoop<A>> Task for Call<L, A> {
    type Output = L::Output;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> L::Output {
        L::run(self.arguments)
    }
}

/// Runs plain code that is compiled for the best instruction set.
#[doc(hidden)]
pub fn run_widest<L: PlainLoop<A>, A>(arguments: A) -> L::Output {
    Isa::best().run(Call::<L, A> { arguments, code: PhantomData })
}

/// Declares a function that calls another one, compiled for the best instruction set of the CPU. The other one must
/// always be inlined. No operation is fused or reordered, so the results are the same.
///
/// ```
/// onboard_lanes::widest! {
///     /// Returns the sum.
///     pub fn sum(numbers: &[u32]) -> u32 = plain_sum;
/// }
///
/// #[inline(always)]
/// fn plain_sum(numbers: &[u32]) -> u32 {
///     numbers.iter().sum()
/// }
///
/// assert_eq!(sum(&[1, 2, 3]), 6);
/// ```
#[macro_export]
macro_rules! widest {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $plain:ident;
    ) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $out)? {
            struct Code;
            impl $crate::PlainLoop<($($ty,)*)> for Code {
                type Output = $crate::widest!(@ $($out)?);

                #[inline(always)]
                fn run(($($arg,)*): ($($ty,)*)) -> Self::Output {
                    $plain($($arg),*)
                }
            }
            $crate::run_widest::<Code, _>(($($arg,)*))
        }
    };
    (@) => { () };
    (@ $out:ty) => { $out };
}
