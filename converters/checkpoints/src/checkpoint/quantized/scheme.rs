//! Parses `config_groups`, which assigns quantization schemes to modules.
//!
//! Names come before patterns, and patterns before classes ([decision 32](../../../../../docs/decisions/0032-scheme-lookup.md)).

use fancy_regex::Regex;
use serde_json::Value;

use super::checks::SchemeResult;
use super::inputs::InputScheme;
use super::integer_config::{matches, pattern};
use super::section::non_null;
use crate::checkpoint::{Checkpoint, Error};

/// All groups, with their ignored modules.
#[derive(Default)]
pub(super) struct Schemes {
    targets: Vec<(SchemeTarget, usize)>,
    ignore: Vec<SchemeTarget>,
    groups: Vec<ModuleScheme>,
}

/// Scheme of a group of modules.
pub(super) struct ModuleScheme {
    /// Scheme of the weights; none if they are not quantized.
    pub(super) weights: Option<WeightScheme>,
    /// Rounding of the inputs of the weights.
    pub(super) inputs: InputScheme,
}

/// Target of a group: a module name, a pattern of names, or a class of modules.
enum SchemeTarget {
    Name(String),
    Pattern(Regex),
}

/// Quantization scheme of the weights of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WeightScheme {
    pub(super) bits: u32,
    pub(super) whole: bool,
    pub(super) symmetric: bool,
    pub(super) strategy: Strategy,
}

/// Range of values that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    Tensor,
    Channel,
    Group(usize),
    Block(usize, usize),
    /// Strategy of formats whose tensors determine it themselves.
    Other,
}

/// Result of looking up a module.
pub(super) enum SchemeMatch<'s> {
    Ignored,
    /// Module that a target names, with its group.
    Module(&'s ModuleScheme),
    /// Module that only class targets may match, with their groups, the likeliest first.
    ClassOnly(Vec<&'s ModuleScheme>),
}

impl Schemes {
    pub(super) fn read(checkpoint: &Checkpoint, section: &Value) -> SchemeResult<Self> {
        let mut schemes = Self::default();
        for text in texts(section.get("ignore")) {
            schemes.ignore.push(SchemeTarget::read(checkpoint, "ignore", text)?);
        }
        let groups = section.get("config_groups").and_then(Value::as_object);
        let mut targets = Vec::new();
        for (name, group) in groups.into_iter().flatten() {
            let key = format!("config_groups.{name}");
            let Some(fields) = group.as_object() else {
                let expected = "an object with `targets` and `weights`: write the name of a \
                                scheme out in full";
                return Err(checkpoint.config_error(&key, &group.to_string(), expected));
            };
            let weights = fields.get("weights").filter(|weights| !weights.is_null());
            let read = weights.map(|weights| WeightScheme::read(checkpoint, &key, weights));
            let inputs = InputScheme::of_group(fields);
            schemes.groups.push(ModuleScheme { weights: read.transpose()?, inputs });
            targets
                .extend(texts(fields.get("targets")).map(|text| (text, schemes.groups.len() - 1)));
        }
        // compressed-tensors takes the first match, names before patterns, each in alphabetical order.
        // Among groups with the same target, the last one counts.
        targets
            .sort_by_key(|&(text, group)| (text.contains("re:"), text, std::cmp::Reverse(group)));
        targets.dedup_by_key(|(text, _)| *text);
        for (text, group) in targets {
            schemes.targets.push((SchemeTarget::read(checkpoint, "targets", text)?, group));
        }
        Ok(schemes)
    }

    pub(super) fn of(
        &self,
        checkpoint: &Checkpoint,
        module: &str,
    ) -> SchemeResult<SchemeMatch<'_>> {
        for target in &self.ignore {
            if target.names(checkpoint, module)? {
                return Ok(SchemeMatch::Ignored);
            }
        }
        for (target, group) in &self.targets {
            if let Some(group) = self.groups.get(*group)
                && target.names(checkpoint, module)?
            {
                return Ok(SchemeMatch::Module(group));
            }
        }
        // A name without dots that no module has is a class.
        let classes = self.targets.iter().filter_map(|(target, group)| match target {
            SchemeTarget::Name(name) if !name.contains('.') => self.groups.get(*group),
            _ => None,
        });
        Ok(SchemeMatch::ClassOnly(classes.collect()))
    }

    /// Returns the group of a module whose weights are floating-point codes.
    pub(super) fn of_floats(
        &self,
        checkpoint: &Checkpoint,
        module: &str,
    ) -> SchemeResult<Option<&ModuleScheme>> {
        Ok(match self.of(checkpoint, module)? {
            SchemeMatch::Ignored => None,
            SchemeMatch::Module(group) => Some(group),
            SchemeMatch::ClassOnly(all) => {
                all.into_iter().find(|group| group.weights.is_some_and(|weights| !weights.whole))
            }
        })
    }
}

impl ModuleScheme {
    /// Returns the block size of the weights.
    pub(super) fn block(&self) -> Option<(usize, usize)> {
        match self.weights?.strategy {
            Strategy::Block(down, across) => Some((down, across)),
            _ => None,
        }
    }
}

impl SchemeTarget {
    fn read(checkpoint: &Checkpoint, key: &str, text: &str) -> SchemeResult<Self> {
        Ok(match text.strip_prefix("re:") {
            Some(text) => Self::Pattern(pattern(checkpoint, key, text)?),
            None => Self::Name(text.to_owned()),
        })
    }

    fn names(&self, checkpoint: &Checkpoint, module: &str) -> SchemeResult<bool> {
        match self {
            Self::Name(name) => Ok(name == module),
            Self::Pattern(regex) => matches(checkpoint, "re:", regex, module),
        }
    }
}

impl WeightScheme {
    fn read(checkpoint: &Checkpoint, key: &str, setting: &Value) -> SchemeResult<Self> {
        let ty = non_null(setting, "type").and_then(Value::as_str);
        let is_integer = ty.is_none_or(|ty| ty.eq_ignore_ascii_case("int"));
        let bits = match non_null(setting, "num_bits") {
            None => 8,
            Some(bits) => match bits.as_u64() {
                Some(bits @ 1..=8) => bits as u32,
                _ if !is_integer => 8,
                _ => {
                    let key = format!("{key}.weights.num_bits");
                    return Err(setting_error(checkpoint, &key, Some(bits), "1 to 8"));
                }
            },
        };
        let size = non_null(setting, "group_size");
        let number = size.and_then(Value::as_i64);
        let named = non_null(setting, "strategy");
        let named = named.and_then(Value::as_str).map(str::to_lowercase);
        let strategy = match (named.as_deref(), number) {
            (Some("tensor"), _) | (None, None) => Strategy::Tensor,
            (Some("channel"), _) | (None, Some(-1)) => Strategy::Channel,
            (Some("group") | None, Some(size @ 1..)) => {
                Strategy::Group(usize::try_from(size).unwrap_or(usize::MAX))
            }
            (Some("block"), _) => {
                let sides: Vec<usize> = non_null(setting, "block_structure")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(|side| usize::try_from(side.as_u64()?).ok())
                    .collect();
                let [down @ (1..), across @ (1..)] = sides[..] else {
                    let structure = non_null(setting, "block_structure");
                    let key = format!("{key}.weights.block_structure");
                    let expected = "rows and columns of a block";
                    return Err(setting_error(checkpoint, &key, structure, expected));
                };
                Strategy::Block(down, across)
            }
            _ if !is_integer => Strategy::Other,
            (Some("group") | None, _) => {
                let key = format!("{key}.weights.group_size");
                let expected = "how many inputs share a scale: 1 or more";
                return Err(setting_error(checkpoint, &key, size, expected));
            }
            (Some(_), _) => {
                let strategy = non_null(setting, "strategy");
                let key = format!("{key}.weights.strategy");
                let expected = "tensor, channel, group or block";
                return Err(setting_error(checkpoint, &key, strategy, expected));
            }
        };
        let symmetric = non_null(setting, "symmetric").and_then(Value::as_bool).unwrap_or(true);
        Ok(Self { bits, whole: is_integer, symmetric, strategy })
    }
}

/// Returns the error for a setting with an unsupported value.
fn setting_error(
    checkpoint: &Checkpoint,
    key: &str,
    value: Option<&Value>,
    expected: &str,
) -> Error {
    let actual = value.map_or("nothing".to_owned(), Value::to_string);
    checkpoint.config_error(key, &actual, expected)
}

fn texts(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}
