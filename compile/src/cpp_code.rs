//! Expressions of written code, and what C++ has for their names and types.

use CodeExpr::{Binary, Call, Name, Unary};

/// An expression of written code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CodeExpr {
    /// A name, a number or a text as it stands.
    Name(String),
    Number(String),
    Text(String),
    /// A text with values in braces.
    Form(String),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    /// Items of a body for each of what is looped over.
    Each {
        body: Box<Self>,
        names: Vec<String>,
        over: Box<Self>,
        filter: Option<Box<Self>>,
    },
    Unary(&'static str, Box<Self>),
    Binary(&'static str, Box<Self>, Box<Self>),
    If(Box<Self>, Box<Self>, Box<Self>),
    Call(Box<Self>, Vec<(Option<String>, Self)>),
    Index(Box<Self>, Box<Self>),
    Slice(Box<Self>, Option<Box<Self>>, Option<Box<Self>>),
    Attribute(Box<Self>, String),
}

/// A type that is no `Value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CppType {
    Bool,
    Int,
    Real,
}

impl CppType {
    /// Returns the name of the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int64_t",
            Self::Real => "double",
        }
    }

    /// Returns the method of a value that gives it as this type.
    pub(crate) fn reader(self) -> &'static str {
        match self {
            Self::Bool => "flag",
            Self::Int => "integer",
            Self::Real => "real",
        }
    }

    /// Returns the type with a name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Bool, Self::Int, Self::Real].into_iter().find(|ty| ty.name() == name)
    }
}

/// Names of a class as C++ has them.
pub(crate) trait CppNames {
    /// Returns the code of an attribute of the class.
    fn member(&self, path: &[&str]) -> String;
    /// Returns the code of the whole config.
    fn config(&self) -> &'static str;
    /// Returns the type of a member; none for a `Value` or a module.
    fn type_of(&self, member: &str) -> Option<CppType>;
    /// Returns the type of a setting; none for a `Value`.
    fn setting_type(&self, name: &str) -> Option<CppType>;
}

/// True for an expression that is true or false in C++.
pub(crate) fn is_truth(expr: &CodeExpr) -> bool {
    match expr {
        Unary("!", _) => true,
        Binary("and" | "or", a, b) => is_truth(a) && is_truth(b),
        Binary(sign, ..) => {
            ["==", "!=", "is", "is not", "<", "<=", ">", ">=", "in", "not in"].contains(sign)
        }
        Name(name) => name == "True" || name == "False",
        Call(name, _) => {
            matches!(&**name, Name(name) if ["has", "any", "isinstance"].contains(&name.as_str()))
        }
        _ => false,
    }
}
