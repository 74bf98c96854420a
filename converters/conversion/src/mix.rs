//! Chooses the type of each tensor of a mixed-precision GGUF file.
//!
//! The rules are in `mix/rules.txt`. They give each tensor the type that llama.cpp's quantize tool gives
//! it.

mod overrides;
mod raise;
mod table;
mod target;

use table::{Condition, MixRole, MixRule, MixTable, MixTest};

pub use overrides::{Overrides, TensorType, parse_type};
pub use raise::{LEVELS, levels};
pub use target::MixTarget;

use formats::codec::{BlockType, ImportanceNeed};
use formats::gguf::{self, Metadata, MetadataValue};
use formats::shown;

/// Reason why types cannot be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error("there is no target `{found}`; choose one of {}", targets())]
    UnknownTarget { found: String },

    #[error("there is no type `{found}` for tensors; choose one of {}", types())]
    UnknownType { found: String },

    #[error("`{found}` is not PATTERN=TYPE, as in `ffn_down=q8_0`")]
    Malformed { found: String },

    #[error("the pattern `{pattern}` is no regular expression: {why}")]
    Pattern { pattern: String, why: String },

    #[error(
        "tensor `{tensor}` has rows of {row} numbers, which do not divide into {ty} blocks of {}, \
         and nothing stands in for {ty}; choose another type for it", ty.elements()
    )]
    NoFallback { tensor: String, row: usize, ty: BlockType },

    #[error(
        "the type of `{tensor}` depends on its layer; expected a name that begins with `blk.N.`, \
         N below {layers}: choose its type yourself"
    )]
    NoLayer { tensor: String, layers: usize },
}

fn targets() -> String {
    MixTarget::all().map(|target| target.name().to_lowercase()).collect::<Vec<_>>().join(", ")
}

fn types() -> String {
    let valid_types = BlockType::all().filter(|ty| parse_type(ty.name()).is_ok());
    valid_types.map(|ty| ty.name().to_lowercase()).collect::<Vec<_>>().join(", ")
}

/// Tensor whose type is to be chosen.
#[derive(Debug, Clone, Copy)]
pub struct MixTensor<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// Type of the tensor if it is not quantized.
    pub base: BlockType,
}

/// Properties of a model that the rules depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MixFacts {
    /// `general.architecture`.
    pub arch: String,
    /// Number of layers, including those of draft heads.
    pub layers: usize,
    /// Number of experts per layer; 0 without experts.
    pub experts: u32,
    /// Number of attention heads of the first layer.
    pub heads: u32,
    /// Number of key heads of the first layer.
    pub kv_heads: u32,
    /// True if there is an importance matrix.
    pub imatrix: bool,
}

impl MixFacts {
    /// Reads the facts from a file's keys. Head counts may be one integer, or one per layer.
    pub fn read(metadata: &Metadata, imatrix: bool) -> Result<Self, gguf::Error> {
        let arch = metadata.str("general.architecture")?.unwrap_or_default().to_owned();
        let heads = first_number(metadata, &format!("{arch}.attention.head_count"))?.unwrap_or(0);
        let kv_heads = format!("{arch}.attention.head_count_kv");
        Ok(Self {
            layers: metadata.u32(&format!("{arch}.block_count"))?.unwrap_or(0) as usize,
            experts: metadata.u32(&format!("{arch}.expert_count"))?.unwrap_or(0),
            heads,
            kv_heads: first_number(metadata, &kv_heads)?.unwrap_or(heads),
            imatrix,
            arch,
        })
    }

    /// Returns the number of heads that share a key head.
    fn gqa(&self) -> u32 {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }
}

/// Type assigned to a tensor, with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeAssignment {
    /// Type of the tensor.
    pub ty: BlockType,
    /// Rule that chose the type, in a few words.
    pub why: String,
    /// True if the user chose the type.
    pub asked: bool,
    /// True if the type is useless without importance values for the tensor.
    pub needs_importance: bool,
}

/// Chooses the type of each tensor.
pub fn assign(
    target: MixTarget,
    tensors: &[MixTensor<'_>],
    facts: &MixFacts,
    overrides: &Overrides,
) -> Result<Vec<TypeAssignment>, Error> {
    let table = MixTable::get();
    let roles: Vec<MixRole> = tensors.iter().map(|tensor| role(table, tensor.name)).collect();
    let mut mix = Mix {
        table,
        target,
        facts,
        overrides,
        tied: !roles.contains(&MixRole::Output),
        values: roles.iter().filter(|role| role.is_values()).count(),
        seen: RoleCounts::default(),
    };
    // Rules count tensors in file order, whatever order the caller gives.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&n| (layer(tensors[n].name), tensors[n].name));
    let mut assigned = vec![None; tensors.len()];
    for n in order {
        assigned[n] = Some(mix.assign(&tensors[n], roles[n])?);
    }
    Ok(assigned.into_iter().flatten().collect())
}

fn role(table: &MixTable, name: &str) -> MixRole {
    let fits = table.roles.iter().find(|(_, names)| names.iter().any(|part| part.fits(name)));
    fits.map_or(MixRole::Other, |(role, _)| *role)
}

/// Returns the number of a key, or the first of its list.
fn first_number(metadata: &Metadata, key: &str) -> Result<Option<u32>, gguf::Error> {
    match metadata.get(key) {
        Some(MetadataValue::Array(list)) => {
            Ok(list.get(0).and_then(|first| u32::try_from(first.integer()?).ok()))
        }
        _ => metadata.u32(key),
    }
}

/// Parses the N of `blk.N`.
fn layer(name: &str) -> Option<usize> {
    let suffix = name.strip_prefix("blk.")?;
    let end = suffix.find(|c: char| !c.is_ascii_digit()).unwrap_or(suffix.len());
    suffix[..end].parse().ok()
}

/// Number of tensors of each role seen so far.
#[derive(Debug, Default)]
struct RoleCounts {
    values: usize,
    up: usize,
    gate: usize,
    down: usize,
}

struct Mix<'a> {
    table: &'static MixTable,
    target: MixTarget,
    facts: &'a MixFacts,
    overrides: &'a Overrides,
    /// True if the embedding serves as the output.
    tied: bool,
    /// Number of tensors that hold attention values.
    values: usize,
    seen: RoleCounts,
}

/// Inputs to the conditions of a rule for one tensor.
struct RuleInput<'a> {
    tensor: &'a MixTensor<'a>,
    role: MixRole,
    nth: usize,
}

impl Mix<'_> {
    fn assign(&mut self, tensor: &MixTensor<'_>, role: MixRole) -> Result<TypeAssignment, Error> {
        if let Some(why) = self.kept(tensor) {
            return Ok(TypeAssignment {
                ty: tensor.base,
                why,
                asked: false,
                needs_importance: false,
            });
        }
        let (ty, why) = self.wanted(tensor, role)?;
        let is_asked = self.is_asked(tensor, role);
        let needs_importance = self.needs_importance(role, ty);
        Ok(TypeAssignment { ty, why, asked: is_asked, needs_importance })
    }

    /// Returns the reason for leaving a tensor unquantized; none if it is quantized.
    fn kept(&self, tensor: &MixTensor<'_>) -> Option<String> {
        let ones = tensor.shape.iter().take_while(|&&dim| dim == 1).count();
        if tensor.shape.len() - ones < 2 {
            return Some("kept: one row".into());
        }
        if !tensor.name.ends_with("weight") {
            return Some("kept: no weight".into());
        }
        if self.overrides.leave_output && tensor.name == "output.weight" {
            return Some("kept: asked for".into());
        }
        let case = RuleInput { tensor, role: MixRole::Other, nth: 0 };
        let (name, _) = self.table.keeps.iter().find(|(name, conditions)| {
            name.fits(tensor.name) && self.all_hold(conditions, &case) == Ok(true)
        })?;
        let (table::NamePattern::Is(part) | table::NamePattern::Has(part)) = name;
        Some(format!("kept: {part}"))
    }

    /// Returns the type that a tensor gets. A user's choice takes precedence over the table.
    fn wanted(
        &mut self,
        tensor: &MixTensor<'_>,
        role: MixRole,
    ) -> Result<(BlockType, String), Error> {
        let choice = self.overrides.tensors.iter().find(|choice| choice.fits(tensor.name));
        let embedding = self.overrides.embedding.filter(|_| role == MixRole::Embedding);
        // The embeddings of layers follow those of tokens unless they are named.
        let named = choice.is_some() && tensor.name == "per_layer_token_embd.weight";
        if let Some(ty) = embedding.filter(|_| !named) {
            return Ok((ty, "asked for: embedding".into()));
        }
        if let Some(ty) = self.overrides.output.filter(|_| role == MixRole::Output) {
            return Ok((ty, "asked for: output".into()));
        }
        let default = self.target.default_type();
        if !default.is_quantized() {
            return Ok((default, "default".into()));
        }
        let (ty, why) = if let Some(choice) = choice {
            (choice.ty, format!("asked for: {}", shown(choice.pattern())))
        } else if self.overrides.pure {
            (default, "default".into())
        } else {
            self.ruled(tensor, role)?
        };
        fallback(tensor, ty, why)
    }

    /// True if the user chose the type of a tensor, rather than the table.
    fn is_asked(&self, tensor: &MixTensor<'_>, role: MixRole) -> bool {
        let Overrides { tensors, output, embedding, .. } = self.overrides;
        let is_output = role == MixRole::Output || (self.tied && role == MixRole::Embedding);
        tensors.iter().any(|choice| choice.fits(tensor.name))
            || (embedding.is_some() && role == MixRole::Embedding)
            || (output.is_some() && is_output)
    }

    /// Returns the type that the table gives a tensor.
    fn ruled(
        &mut self,
        tensor: &MixTensor<'_>,
        role: MixRole,
    ) -> Result<(BlockType, String), Error> {
        let tied = self.tied && role == MixRole::Embedding;
        let role = if tied { MixRole::Output } else { role };
        if let Some(ty) = self.overrides.output.filter(|_| tied) {
            return Ok((ty, "asked for: output".into()));
        }
        let case = RuleInput { tensor, role, nth: self.count(role) };
        let default = self.target.default_type();
        let mut assignment = (default, String::from("default"));
        for rule in &self.table.rules {
            if self.applies(rule, &case)? {
                assignment = (rule.ty.unwrap_or(default), because(rule, role, tied));
                break;
            }
        }
        for rule in self.table.raises.iter().filter(|rule| rule.from.contains(&assignment.0)) {
            if self.applies(rule, &case)? {
                assignment = (rule.ty.unwrap_or(default), because(rule, role, tied));
                break;
            }
        }
        Ok(assignment)
    }

    /// Counts the tensors of this role before the current one, then counts the current one.
    fn count(&mut self, role: MixRole) -> usize {
        let seen = match role {
            _ if role.is_values() => &mut self.seen.values,
            MixRole::FfnUp => &mut self.seen.up,
            MixRole::FfnGate => &mut self.seen.gate,
            MixRole::FfnDown => &mut self.seen.down,
            _ => return 0,
        };
        *seen += 1;
        *seen - 1
    }

    fn applies(&self, rule: &MixRule, case: &RuleInput<'_>) -> Result<bool, Error> {
        if !rule.targets.has(&self.target) || !rule.roles.has(&case.role) {
            return Ok(false);
        }
        self.all_hold(&rule.conditions, case)
    }

    fn all_hold(&self, conditions: &[Condition], case: &RuleInput<'_>) -> Result<bool, Error> {
        for condition in conditions {
            if self.holds(&condition.test, case)? != condition.wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn holds(&self, test: &MixTest, case: &RuleInput<'_>) -> Result<bool, Error> {
        let Self { facts, .. } = self;
        let n = if case.role.is_values() { self.values } else { facts.layers };
        Ok(match test {
            MixTest::GqaFrom(least) => facts.gqa() >= *least,
            MixTest::Grouped => facts.heads != facts.kv_heads,
            MixTest::Experts(count) => facts.experts == *count,
            MixTest::ExpertsFrom(least) => facts.experts >= *least,
            MixTest::Layers(count) => facts.layers == *count,
            MixTest::Imatrix => facts.imatrix,
            MixTest::Stacked => stacked(case.tensor.shape),
            MixTest::Uneven => {
                !row(case.tensor.shape).is_multiple_of(self.target.default_type().elements())
            }
            MixTest::Arch(name) => facts.arch == *name,
            MixTest::Name(part) => case.tensor.name.contains(part),
            MixTest::NthBelow(bound) => case.nth < bound.of(n),
            MixTest::LayerBelow(bound) => self.layer(case)? < bound.of(n),
            MixTest::LayerFrom(bound) => self.layer(case)? >= bound.of(n),
            MixTest::More => {
                let at = self.layer(case)?;
                at < n / 8 || at >= 7 * n / 8 || (at - n / 8) % 3 == 2
            }
        })
    }

    fn layer(&self, case: &RuleInput<'_>) -> Result<usize, Error> {
        if self.facts.experts <= 1 || case.role.is_values() {
            return Ok(case.nth);
        }
        let layers = self.facts.layers;
        layer(case.tensor.name)
            .filter(|&at| at < layers)
            .ok_or_else(|| Error::NoLayer { tensor: shown(case.tensor.name), layers })
    }

    fn needs_importance(&self, role: MixRole, ty: BlockType) -> bool {
        let low = ty.importance() != ImportanceNeed::Optional;
        // A type may be too low for a mix alone.
        let low = low || (ty == BlockType::Q2K && self.target.name() == "Q2_K_S");
        low && !matches!(role, MixRole::Output | MixRole::Embedding)
    }
}

fn because(rule: &MixRule, role: MixRole, tied: bool) -> String {
    if rule.ty.is_none() {
        return "default".into();
    }
    let role = if tied { "embedding as output" } else { role.name() };
    if rule.why.is_empty() { role.into() } else { format!("{role}: {}", rule.why) }
}

/// Returns the substitute for a type whose blocks do not divide the rows.
fn fallback(
    tensor: &MixTensor<'_>,
    ty: BlockType,
    why: String,
) -> Result<(BlockType, String), Error> {
    let row = row(tensor.shape);
    if row.is_multiple_of(ty.elements()) {
        return Ok((ty, why));
    }
    let instead = match ty.fallback() {
        Some(instead) if row.is_multiple_of(instead.elements()) => instead,
        None if ty.elements() > 32 => {
            return Err(Error::NoFallback { tensor: shown(tensor.name), row, ty });
        }
        _ => BlockType::F16,
    };
    Ok((instead, format!("{why}; rows of {row} do not fit {ty}")))
}

fn row(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// True if the third dimension from the inside is more than one.
fn stacked(shape: &[usize]) -> bool {
    shape.iter().rev().nth(2).is_some_and(|&count| count > 1)
}
