//! Loops that are compiled for the widest vectors of the CPU.
//!
//! No operation is fused or reordered ([decision 86](../../../docs/decisions/0086-loops-for-wide-vectors.md)).

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for vectors")]

use lanes::{Isa, Simd, VectorTask};

/// A loop. Its `run` is always inlined, so that it is compiled anew for each instruction set; no operation is
/// fused or reordered, so its results are the same for all of them.
pub trait Wide {
    /// Runs the loop.
    fn run(self);
}

/// A loop as a task, which uses no operation of vectors.
struct PlainTask<L>(L);

impl<L: Wide> VectorTask for PlainTask<L> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        self.0.run();
    }
}

/// Runs a loop with the widest vectors of this CPU.
pub fn wide(task: impl Wide) {
    Isa::best().run(PlainTask(task));
}
