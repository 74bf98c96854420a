//! Declarations of commands that can be divided into pieces.

/// Command that can be divided into pieces, each of which a machine makes alone.
///
/// Words of a piece and of the merge are templates. `{i}` is the number of the piece, from 1, `{n}` the number
/// of pieces, and `{output}` the command's output. A word behind `?` is left out if the command has it.
/// A word that is `{command}`, `{products}`, `{set}` or `{force}` alone is replaced by the words of the
/// command, the products of all pieces, the first file of a set, or `--force` if the command has it.
#[derive(Debug)]
pub struct DivisibleCommand {
    /// First words of the command.
    pub name: &'static [&'static str],
    /// Words that a piece has in addition.
    pub piece: &'static [&'static str],
    /// Output of a piece; none if all pieces are given the command's.
    pub piece_output: Option<&'static str>,
    /// File that is there once a piece is made; none if its name is not known before.
    pub product: Option<&'static str>,
    /// Flags that a divided command does not have: those of a piece, and those that write no product.
    pub refused: &'static [&'static str],
    /// True if the merge writes the output. A piece is refused while a file is in its place.
    pub merge_writes: bool,
    /// Command that checks that all pieces are there, and joins them.
    pub merge: &'static [&'static str],
    /// Result of the merge, for people.
    pub result: &'static str,
}

impl DivisibleCommand {
    /// True for the words of such a command.
    pub(crate) fn begins(&self, words: &[String]) -> bool {
        words.len() >= self.name.len() && self.name.iter().zip(words).all(|(a, b)| a == b)
    }
}

/// Returns the names of commands, for messages.
pub(crate) fn names(kinds: &[DivisibleCommand]) -> String {
    let quoted: Vec<String> =
        kinds.iter().map(|kind| format!("`{}`", kind.name.join(" "))).collect();
    quoted.join(", ")
}
