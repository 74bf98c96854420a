//! Values of keys, of thirteen kinds.

use std::fmt;

/// Defines [`MetadataKind`], [`MetadataValue`] and [`MetadataArray`] from one list of numeric kinds.
macro_rules! kinds {
    ($($variant:ident $ty:ident $id:literal $doc:literal),* $(,)?) => {
        /// Kind of a key's value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum MetadataKind {
            $(#[doc = $doc] $variant,)*
            /// One byte, zero or not.
            Bool,
            /// UTF-8.
            String,
            /// Values of one kind, other than arrays.
            Array,
        }

        /// Value of a key.
        #[derive(Debug, Clone, PartialEq)]
        pub enum MetadataValue {
            $(#[doc = $doc] $variant($ty),)*
            /// Boolean.
            Bool(bool),
            /// Text.
            String(String),
            /// Values of one kind.
            Array(MetadataArray),
        }

        /// Array, by the kind of its elements.
        #[derive(Debug, Clone, PartialEq)]
        pub enum MetadataArray {
            $(#[doc = $doc] $variant(Vec<$ty>),)*
            /// Booleans.
            Bool(Vec<bool>),
            /// Strings.
            String(Vec<String>),
        }

        impl MetadataKind {
            /// Returns the kind with this id in files.
            pub fn from_id(id: u32) -> Option<Self> {
                Some(match id {
                    $($id => Self::$variant,)*
                    7 => Self::Bool,
                    8 => Self::String,
                    9 => Self::Array,
                    _ => return None,
                })
            }

            /// Returns the id in files.
            pub fn id(self) -> u32 {
                match self {
                    $(Self::$variant => $id,)*
                    Self::Bool => 7,
                    Self::String => 8,
                    Self::Array => 9,
                }
            }

            /// Returns the name, as in `u32`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($ty),)*
                    Self::Bool => "bool",
                    Self::String => "string",
                    Self::Array => "array",
                }
            }
        }

        impl MetadataValue {
            /// Returns the kind of the value.
            pub fn kind(&self) -> MetadataKind {
                match self {
                    $(Self::$variant(_) => MetadataKind::$variant,)*
                    Self::Bool(_) => MetadataKind::Bool,
                    Self::String(_) => MetadataKind::String,
                    Self::Array(_) => MetadataKind::Array,
                }
            }

            /// Appends the bytes of the value, without its kind.
            pub(super) fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(x) => out.extend_from_slice(&x.to_le_bytes()),)*
                    Self::Bool(x) => out.push(u8::from(*x)),
                    Self::String(text) => write_text(text, out),
                    Self::Array(array) => array.write(out),
                }
            }
        }

        impl MetadataArray {
            /// Returns the kind of the elements.
            pub fn kind(&self) -> MetadataKind {
                match self {
                    $(Self::$variant(_) => MetadataKind::$variant,)*
                    Self::Bool(_) => MetadataKind::Bool,
                    Self::String(_) => MetadataKind::String,
                }
            }

            /// Returns the number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$variant(list) => list.len(),)*
                    Self::Bool(list) => list.len(),
                    Self::String(list) => list.len(),
                }
            }

            /// Returns one element as a value of its own.
            pub fn get(&self, n: usize) -> Option<MetadataValue> {
                match self {
                    $(Self::$variant(list) => list.get(n).copied().map(MetadataValue::$variant),)*
                    Self::Bool(list) => list.get(n).copied().map(MetadataValue::Bool),
                    Self::String(list) => list.get(n).cloned().map(MetadataValue::String),
                }
            }

            /// Appends the kind of the elements, their number, and the elements.
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.kind().id().to_le_bytes());
                out.extend_from_slice(&(self.len() as u64).to_le_bytes());
                match self {
                    $(Self::$variant(list) => {
                        out.extend(list.iter().flat_map(|x| x.to_le_bytes()));
                    })*
                    Self::Bool(list) => out.extend(list.iter().map(|&x| u8::from(x))),
                    Self::String(list) => {
                        for text in list {
                            write_text(text, out);
                        }
                    }
                }
            }
        }

        $(impl From<$ty> for MetadataValue {
            fn from(x: $ty) -> Self {
                Self::$variant(x)
            }
        }

        impl From<Vec<$ty>> for MetadataValue {
            fn from(list: Vec<$ty>) -> Self {
                Self::Array(MetadataArray::$variant(list))
            }
        })*
    };
}

kinds! {
    U8 u8 0 "A byte.",
    I8 i8 1 "A signed byte.",
    U16 u16 2 "16 bits.",
    I16 i16 3 "16 bits with a sign.",
    U32 u32 4 "32 bits.",
    I32 i32 5 "32 bits with a sign.",
    F32 f32 6 "A single-precision number.",
    U64 u64 10 "64 bits.",
    I64 i64 11 "64 bits with a sign.",
    F64 f64 12 "A double-precision number.",
}

/// Appends a string's length and bytes.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl MetadataValue {
    /// Returns the value of any integer kind.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            _ => return None,
        })
    }

    /// Returns the kind, including the element kind of an array.
    pub fn kind_name(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.kind()),
            other => other.kind().name().into(),
        }
    }
}

impl MetadataArray {
    /// True if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements if they are strings.
    pub fn strings(&self) -> Option<&[String]> {
        match self {
            Self::String(list) => Some(list),
            _ => None,
        }
    }

    /// Returns the elements if they are integers of any kind.
    pub fn integers(&self) -> Option<Vec<i128>> {
        (0..self.len()).map(|n| self.get(n)?.integer()).collect()
    }
}

impl fmt::Display for MetadataKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<bool> for MetadataValue {
    fn from(x: bool) -> Self {
        Self::Bool(x)
    }
}

impl From<&str> for MetadataValue {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for MetadataValue {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Vec<bool>> for MetadataValue {
    fn from(list: Vec<bool>) -> Self {
        Self::Array(MetadataArray::Bool(list))
    }
}

impl From<Vec<String>> for MetadataValue {
    fn from(list: Vec<String>) -> Self {
        Self::Array(MetadataArray::String(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_numbers_of_the_format() {
        let names = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array"];
        for (id, name) in names.into_iter().chain(["u64", "i64", "f64"]).enumerate() {
            let kind = MetadataKind::from_id(id as u32).unwrap();
            assert_eq!((kind.id(), kind.name()), (id as u32, name));
        }
        assert_eq!(MetadataKind::from_id(13), None);
    }
}
