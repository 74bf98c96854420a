//! Operations that every memory of past positions supports, however it is stored.

/// Reason that saved bytes are not the positions of a past.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("rows {floor}..{end} do not fit this state")]
    Rows { floor: usize, end: usize },
    #[error("positions {floor}..{end} do not fit this state")]
    Positions { floor: usize, end: usize },
    #[error("{found} bytes do not make {rows} rows of {size}")]
    RowBytes { found: usize, rows: usize, size: usize },
    #[error("{found} bytes do not make {blocks} blocks of {size}")]
    BlockBytes { found: usize, blocks: usize, size: usize },
}

/// A past that moves on with each step, and can be returned to.
pub trait Past {
    /// Returns the first position that counts as held.
    fn floor(&self) -> usize;
    /// Ends a step: what no later step can need is dropped.
    fn commit(&mut self);
    /// Returns the shortest length that [`Past::truncate`] can give.
    fn shortest(&self) -> usize;
    /// Forgets everything from `length` on; the caller has asked [`Past::shortest`], or undoes
    /// what this step added.
    fn truncate(&mut self, length: usize);
    /// Forgets everything; with `poison`, what lay there becomes NaN.
    fn clear(&mut self, poison: bool);
    /// Writes the held positions as little-endian bytes of the stored dtype.
    fn to_bytes(&self, out: &mut Vec<u8>);
    /// Takes positions `floor..end` from the form that [`Past::to_bytes`] writes. The error says why
    /// the numbers do not belong together.
    fn set_bytes(&mut self, floor: usize, end: usize, bytes: &[u8]) -> Result<(), Error>;
}
