//! Multiplies numbers by a factor with every instruction set of this CPU.
//!
//! `cargo run --release -p onboard-lanes --example scale`

#![expect(clippy::print_stdout, reason = "an example prints its result")]
#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use onboard_lanes::{Isa, Simd, VectorTask};

/// Sixteen numbers and a factor.
struct Scaled<'a> {
    numbers: &'a mut [f32; 16],
    factor: f32,
}

impl VectorTask for Scaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        simd.store16(simd.times(simd.load16(self.numbers), self.factor), self.numbers);
    }
}

fn main() {
    for isa in Isa::available() {
        let mut numbers = std::array::from_fn(|n| n as f32);
        isa.run(Scaled { numbers: &mut numbers, factor: 0.5 });
        println!("{isa:?}: {numbers:?}");
    }
}
