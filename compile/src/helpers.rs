//! Helpers of the written file: which are used, with which arguments, and in which variants.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use registry::scalar::Scalar;

/// Frequency with which an argument is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ArgumentPresence {
    /// In some call it may be there.
    pub(crate) some: bool,
    /// In some call it may be null.
    pub(crate) null: bool,
}

/// One helper, for certain values of some parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variant {
    pub(crate) values: BTreeMap<String, Scalar>,
    pub(crate) given: BTreeMap<String, ArgumentPresence>,
}

/// All helpers of a file, in the order of their first use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Helpers {
    pub(crate) used: IndexMap<String, Vec<Variant>>,
}

impl Helpers {
    /// Notes a use, and returns the name of the helper's variant.
    pub(crate) fn note(
        &mut self,
        helper: &str,
        values: &BTreeMap<String, Scalar>,
        given: &[(String, ArgumentPresence)],
    ) -> String {
        let variants = self.used.entry(helper.to_owned()).or_default();
        let known = variants.iter().position(|variant| variant.values == *values);
        let place = known.unwrap_or_else(|| {
            variants.push(Variant { values: values.clone(), given: BTreeMap::new() });
            variants.len() - 1
        });
        for (param, now) in given {
            let so_far = variants[place].given.entry(param.clone()).or_default();
            so_far.some |= now.some;
            so_far.null |= now.null;
        }
        variant_name(helper, place)
    }
}

/// Returns the name of a variant of a helper.
pub(crate) fn variant_name(helper: &str, place: usize) -> String {
    match place {
        0 => helper.to_owned(),
        n if helper.starts_with(|c: char| c.is_uppercase()) => format!("{helper}{}", n + 1),
        n => format!("{helper}_{}", n + 1),
    }
}

/// The kind of the error by which a template says that it has no code for something.
pub(crate) const REFUSAL: minijinja::ErrorKind = minijinja::ErrorKind::EvalBlock;

/// The function that templates call where they have no code for a form.
pub(crate) fn refuse(form: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(REFUSAL, form))
}
