//! Properties of ops that other parts of the program ask for instead of names.

/// One property of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trait {
    /// Gives the product of its input and the matrix `weight`.
    Projects,
    /// Gives the product of each head and a matrix of its own.
    ProjectsHeads,
    /// Looks up rows of the matrix `weight`.
    LooksUp,
    /// Multiplies by the matrix `weight` inside other work.
    MultipliesWithin,
    /// Multiplies what its state keeps by the matrix `weight`.
    ExpandsState,
    /// Runs the matrices of a mixture of experts, of which each row uses a few.
    Experts,
    /// Rounds what its matrices multiply where a checkpoint asks for it; these may be quantized.
    RoundsInputs,
    /// Keeps what it is fed, or what it computes, in a state of its own.
    KeepsState,
    /// Looks at the positions of rows, though it has neither a state nor a rotary table.
    Positional,
    /// Keeps the documents of a packed sequence apart, though it keeps a state.
    SeparatesDocuments,
    /// Recomputes its output from the tokens alone.
    FromTokens,
    /// Gives the places of the largest of its input's numbers, as a router does.
    Chooses,
    /// Applies one function to each number.
    Function,
    /// Applies one function to each row.
    RowFunction,
    /// Fusible with the product that it gates: its bits are the same there.
    Gates,
    /// Fusible with others of its kind that read the same input.
    Joins,
    /// Adds two values.
    Adds,
    /// Multiplies two values number by number.
    Multiplies,
    /// Combines two values number by number.
    Combines,
    /// Gives the same bits when its first two inputs change places.
    Commutes,
}
