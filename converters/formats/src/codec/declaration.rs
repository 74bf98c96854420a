//! Declaration of a block type, from which all else that is known of the type follows.

use registry::dtype::Dtype;

use super::decoder::BlockCode;
use super::levels::Levels;
use super::{BlockType, EncodeFn, EncodeLanesFn};

/// `(block, to)`. The levels arrive with scales of 1 and no minima.
type LevelsFn = fn(&[u8], &mut Levels);

/// Facts about a block type. [`Declaration::new`] has the defaults of those that a type may lack.
pub(crate) struct BlockDeclaration {
    /// Name, as in `Q4_K`.
    pub(crate) name: &'static str,
    /// Id in files.
    pub(crate) id: u32,
    /// Number of values in a block.
    pub(crate) elements: usize,
    /// Number of bytes in a block.
    pub(crate) bytes: usize,
    /// Dtype of the values, if the type is one that models run in.
    pub(crate) plain: Option<Dtype>,
    /// Encoder of whole rows; none for types that are not written.
    pub(crate) encode: Option<EncodeFn>,
    /// Vectorized encoder of the same bytes.
    pub(crate) wide: Option<EncodeLanesFn>,
    /// Decoder of whole blocks; none for types that exist only while a model runs.
    pub(crate) decode: Option<BlockCode>,
    /// Reader of one block as integers with scales; none for types without that form.
    pub(crate) levels: Option<LevelsFn>,
    /// Rule of valid blocks.
    pub(crate) scales: ScaleRule,
    /// Dependence on an importance matrix.
    pub(crate) importance: ImportanceNeed,
    /// Root mean squared error over the root mean square, for normally distributed values. An importance
    /// matrix is used only if the type requires one (`tests/it/bands.rs` of `onboard-conversion`). None for types that are exact or
    /// nearly so.
    pub(crate) error: Option<f64>,
    /// Number of values that share a scale, if the blocks hold e2m1 codes of checkpoints unchanged.
    pub(crate) e2m1: Option<usize>,
    /// Functions of the factor beside the blocks, for types whose scales do not reach far enough.
    pub(crate) factored: Option<FactorCodec>,
    /// Type that takes the place of this one if rows do not divide into its blocks.
    pub(crate) fallback: Option<BlockType>,
    /// File types of files whose matrices are mostly of this type.
    pub(crate) file_types: &'static [FileType],
}

impl BlockDeclaration {
    /// Returns the declaration of a type that is neither read nor written.
    pub(super) const fn new(name: &'static str, id: u32, elements: usize, bytes: usize) -> Self {
        Self {
            name,
            id,
            elements,
            bytes,
            plain: None,
            encode: None,
            wide: None,
            decode: None,
            levels: None,
            scales: ScaleRule::Free,
            importance: ImportanceNeed::Optional,
            error: None,
            e2m1: None,
            factored: None,
            fallback: None,
            file_types: &[],
        }
    }
}

/// Rule of valid blocks.
pub(crate) enum ScaleRule {
    /// Any bytes are valid.
    Free,
    /// Scales of f16 at these bytes, each finite.
    F16(&'static [usize]),
    /// A number of the block, finite.
    Number(fn(&[u8]) -> f64),
    /// A byte of exponent at this place, other than 255, which means NaN.
    Exponent(usize),
}

/// Dependence of a block type on an importance matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportanceNeed {
    /// The type is useful without.
    Optional,
    /// The type is useless without, for matrices of layers.
    Advised,
    /// The encoder cannot do without.
    Required,
}

/// Functions of a type whose tensors have a factor beside their blocks.
#[derive(Clone, Copy)]
pub(crate) struct FactorCodec {
    /// Encodes values as blocks that are multiplied by the factor on reading: `(numbers, factor, out)`.
    pub(crate) encode: fn(&[f32], f32, &mut [u8]),
    /// Returns the factor for values up to a peak.
    pub(crate) factor: fn(f32) -> f32,
}

/// File type (`general.file_type`), a type alone or a mix around one.
#[derive(Debug, PartialEq, Eq)]
pub struct FileType {
    /// Name, such as `Q4_K_M`.
    pub name: &'static str,
    /// Value of `general.file_type`.
    pub id: u32,
    /// True if a file of this type can be asked for; false if it comes from packed sources alone.
    pub target: bool,
}

impl FileType {
    /// Returns a file type that can be asked for.
    pub(super) const fn new(name: &'static str, id: u32) -> Self {
        Self { name, id, target: true }
    }

    /// Returns the file type of blocks that are kept as they are packed.
    pub(super) const fn kept(name: &'static str, id: u32) -> Self {
        Self { name, id, target: false }
    }
}
