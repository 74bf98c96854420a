//! Block types: the list of them, and the facts that their declarations state.

use std::cmp::Ordering;
use std::fmt;

use registry::dtype::Dtype;

use super::declaration::BlockDeclaration;
use super::{BlockType, FileType, ImportanceNeed};

/// Makes the type and its table of declarations from one list.
macro_rules! block_types {
    ($($(#[$meta:meta])* $ty:ident: $declared:path,)*) => {
        /// Format of a tensor in a GGUF file.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names are the format's own")]
        #[non_exhaustive]
        pub enum BlockType {
            $($(#[$meta])* $ty,)*
        }

        /// Types and their declarations, in the order of the variants.
        static DECLARED: &[(BlockType, declaration::BlockDeclaration)] =
            &[$($(#[$meta])* (BlockType::$ty, $declared),)*];

        impl BlockType {
            /// Returns every format in the order of the list.
            pub fn declared() -> impl Iterator<Item = Self> {
                DECLARED.iter().map(|row| row.0)
            }

            pub(crate) fn declaration(self) -> &'static declaration::BlockDeclaration {
                &DECLARED[self as usize].1
            }
        }
    };
}

impl BlockType {
    /// Returns every format in the order of the ids.
    pub fn all() -> impl Iterator<Item = Self> {
        let mut all: Vec<Self> = Self::declared().collect();
        all.sort_unstable();
        all.into_iter()
    }

    fn find(fits: impl Fn(&BlockDeclaration) -> bool) -> Option<Self> {
        Self::declared().find(|ty| fits(ty.declaration()))
    }

    /// Returns the format with this id in files.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::find(|declared| declared.id == id)
    }

    /// Returns the format of this name, in any case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::find(|declared| declared.name.eq_ignore_ascii_case(name))
    }

    /// Returns the format whose values are of a dtype that models run in.
    pub fn of_dtype(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }

    /// Returns the format whose blocks hold e2m1 codes of checkpoints unchanged, by the number of values
    /// that share a scale.
    pub fn of_e2m1(group: usize) -> Option<Self> {
        Self::find(|declared| declared.e2m1 == Some(group))
    }

    /// Returns the id in files.
    pub fn id(self) -> u32 {
        self.declaration().id
    }

    /// Returns the number of values in a block.
    pub fn elements(self) -> usize {
        self.declaration().elements
    }

    /// Returns the number of bytes in a block.
    pub fn bytes(self) -> usize {
        self.declaration().bytes
    }

    /// Returns the name, as in `Q4_K`.
    pub fn name(self) -> &'static str {
        self.declaration().name
    }

    /// Returns the dtype of the values, if it is one that models run in.
    pub fn plain(self) -> Option<Dtype> {
        self.declaration().plain
    }

    /// True if a block holds more than one value.
    pub fn is_quantized(self) -> bool {
        self.elements() > 1
    }

    /// True if tensors of a model can be encoded as this type.
    pub fn is_written(self) -> bool {
        self.declaration().encode.is_some()
    }

    /// Returns the dependence on an importance matrix.
    pub fn importance(self) -> ImportanceNeed {
        self.declaration().importance
    }

    /// True if encoding requires an importance matrix.
    pub fn needs_importance(self) -> bool {
        self.importance() == ImportanceNeed::Required
    }

    /// True if programs store a factor of the matrix beside the blocks.
    pub fn has_factor(self) -> bool {
        self.declaration().factored.is_some()
    }

    /// Returns the factor beside the blocks for values up to `peak`; none if the type has no factor.
    pub fn factor(self, peak: f32) -> Option<f32> {
        self.declaration().factored.map(|functions| (functions.factor)(peak))
    }

    /// Returns the type that takes the place of this one if rows do not divide into its blocks.
    pub fn fallback(self) -> Option<Self> {
        self.declaration().fallback
    }

    /// Returns the file types of files whose matrices are mostly of this type.
    pub fn file_types(self) -> &'static [FileType] {
        self.declaration().file_types
    }

    /// Returns the bytes of a row of this many values; none if it does not divide into blocks.
    pub fn row_bytes(self, numbers: usize) -> Option<usize> {
        let blocks = numbers.is_multiple_of(self.elements()).then(|| numbers / self.elements())?;
        blocks.checked_mul(self.bytes())
    }
}

impl Ord for BlockType {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id().cmp(&other.id())
    }
}

impl PartialOrd for BlockType {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_unique() {
        for ty in BlockType::declared() {
            assert_eq!(BlockType::from_id(ty.id()), Some(ty));
            assert_eq!(BlockType::parse(&ty.name().to_lowercase()), Some(ty));
        }
        for dtype in Dtype::ALL {
            assert_eq!(BlockType::of_dtype(dtype).plain(), Some(dtype));
        }
    }

    #[test]
    fn declarations_agree_with_themselves() {
        for ty in BlockType::all() {
            let declared = ty.declaration();
            assert!(declared.encode.is_none() || declared.decode.is_some(), "{ty} can be read");
            assert_eq!(declared.error.is_some(), ty.is_quantized() && ty.is_written(), "{ty}");
            assert!(declared.file_types.is_empty() || ty.is_written(), "{ty}");
            assert!(
                ty.fallback().is_none_or(|to: BlockType| to.elements() < ty.elements()),
                "{ty} has a type that fits more rows"
            );
        }
    }
}
