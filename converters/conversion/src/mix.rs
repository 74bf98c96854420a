//! Chooses the type of each tensor of a mixed-precision GGUF file.
//!
//! The rules are in `mix/rules.txt`. They give each tensor the type that llama.cpp's quantize tool gives
//! it.

mod overrides;
mod raise;
mod table;
mod target;

use table::{Condition, Role, Rule, Table, Test};

pub use overrides::{Overrides, TensorType, parse_type};
pub use raise::{LEVELS, levels};
pub use target::Target;

use formats::codec::{BlockType, Importance};
use formats::gguf::{self, Metadata, Value};
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
    Target::all().map(|target| target.name().to_lowercase()).collect::<Vec<_>>().join(", ")
}

fn types() -> String {
    let kept = BlockType::all().filter(|ty| parse_type(ty.name()).is_ok());
    kept.map(|ty| ty.name().to_lowercase()).collect::<Vec<_>>().join(", ")
}

/// Tensor whose type is to be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// Type of the tensor if it is not quantized.
    pub base: BlockType,
}

/// Properties of a model that the rules depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
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

impl Facts {
    /// Reads the facts from a file's keys. Head counts may be one integer, or one per layer.
    pub fn read(metadata: &Metadata, imatrix: bool) -> Result<Self, gguf::Error> {
        let arch = metadata.str("general.architecture")?.unwrap_or_default().to_owned();
        let key = |name: &str| format!("{arch}.{name}");
        let first = |name: &str| match metadata.get(&key(name)) {
            Some(Value::Array(list)) => {
                Ok(list.get(0).and_then(|first| u32::try_from(first.integer()?).ok()))
            }
            _ => metadata.u32(&key(name)),
        };
        let heads = first("attention.head_count")?.unwrap_or(0);
        Ok(Self {
            layers: metadata.u32(&key("block_count"))?.unwrap_or(0) as usize,
            experts: metadata.u32(&key("expert_count"))?.unwrap_or(0),
            heads,
            kv_heads: first("attention.head_count_kv")?.unwrap_or(heads),
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
pub struct Assigned {
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
    target: Target,
    tensors: &[Tensor<'_>],
    facts: &Facts,
    overrides: &Overrides,
) -> Result<Vec<Assigned>, Error> {
    let table = Table::get();
    let roles: Vec<Role> = tensors.iter().map(|tensor| role(table, tensor.name)).collect();
    let mut mix = Mix {
        table,
        target,
        facts,
        overrides,
        tied: !roles.contains(&Role::Output),
        values: roles.iter().filter(|role| role.is_values()).count(),
        seen: Seen::default(),
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

fn role(table: &Table, name: &str) -> Role {
    let fits = table.roles.iter().find(|(_, names)| names.iter().any(|part| part.fits(name)));
    fits.map_or(Role::Other, |(role, _)| *role)
}

/// Parses the N of `blk.N`.
fn layer(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("blk.")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Number of tensors of each role seen so far.
#[derive(Debug, Default)]
struct Seen {
    values: usize,
    up: usize,
    gate: usize,
    down: usize,
}

struct Mix<'a> {
    table: &'static Table,
    target: Target,
    facts: &'a Facts,
    overrides: &'a Overrides,
    /// True if the embedding serves as the output.
    tied: bool,
    /// Number of tensors that hold attention values.
    values: usize,
    seen: Seen,
}

/// Inputs to the conditions of a rule for one tensor.
struct Case<'a> {
    tensor: &'a Tensor<'a>,
    role: Role,
    nth: usize,
}

impl Mix<'_> {
    fn assign(&mut self, tensor: &Tensor<'_>, role: Role) -> Result<Assigned, Error> {
        if let Some(why) = self.kept(tensor) {
            return Ok(Assigned { ty: tensor.base, why, asked: false, needs_importance: false });
        }
        let (ty, why) = self.wanted(tensor, role)?;
        let (asked, needs_importance) =
            (self.is_asked(tensor, role), self.needs_importance(role, ty));
        Ok(Assigned { ty, why, asked, needs_importance })
    }

    /// Returns the reason for leaving a tensor unquantized; none if it is quantized.
    fn kept(&self, tensor: &Tensor<'_>) -> Option<String> {
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
        let case = Case { tensor, role: Role::Other, nth: 0 };
        let keeps = |(name, conditions): &&(table::Name, Vec<Condition>)| {
            name.fits(tensor.name) && self.all_hold(conditions, &case) == Ok(true)
        };
        let (name, _) = self.table.keeps.iter().find(keeps)?;
        let (table::Name::Is(part) | table::Name::Has(part)) = name;
        Some(format!("kept: {part}"))
    }

    /// Returns the type that a tensor gets. A user's choice takes precedence over the table.
    fn wanted(&mut self, tensor: &Tensor<'_>, role: Role) -> Result<(BlockType, String), Error> {
        let asked = self.overrides.tensors.iter().find(|wanted| wanted.fits(tensor.name));
        let embedding = self.overrides.embedding.filter(|_| role == Role::Embedding);
        // The embeddings of layers follow those of tokens unless they are named.
        let named = asked.is_some() && tensor.name == "per_layer_token_embd.weight";
        if let Some(ty) = embedding.filter(|_| !named) {
            return Ok((ty, "asked for: embedding".into()));
        }
        if let Some(ty) = self.overrides.output.filter(|_| role == Role::Output) {
            return Ok((ty, "asked for: output".into()));
        }
        let default = self.target.default_type();
        if !default.is_quantized() {
            return Ok((default, "default".into()));
        }
        let (ty, why) = if let Some(wanted) = asked {
            (wanted.ty, format!("asked for: {}", shown(wanted.pattern())))
        } else if self.overrides.pure {
            (default, "default".into())
        } else {
            self.ruled(tensor, role)?
        };
        fallback(tensor, ty, why)
    }

    /// True if the user chose the type of a tensor, rather than the table.
    fn is_asked(&self, tensor: &Tensor<'_>, role: Role) -> bool {
        let Overrides { tensors, output, embedding, .. } = self.overrides;
        let is_output = role == Role::Output || (self.tied && role == Role::Embedding);
        tensors.iter().any(|wanted| wanted.fits(tensor.name))
            || (embedding.is_some() && role == Role::Embedding)
            || (output.is_some() && is_output)
    }

    /// Returns the type that the table gives a tensor.
    fn ruled(&mut self, tensor: &Tensor<'_>, role: Role) -> Result<(BlockType, String), Error> {
        let tied = self.tied && role == Role::Embedding;
        let role = if tied { Role::Output } else { role };
        if let Some(ty) = self.overrides.output.filter(|_| tied) {
            return Ok((ty, "asked for: output".into()));
        }
        let case = Case { tensor, role, nth: self.count(role) };
        let default = self.target.default_type();
        let mut found = (default, String::from("default"));
        for rule in &self.table.rules {
            if self.applies(rule, &case)? {
                found = (rule.ty.unwrap_or(default), because(rule, role, tied));
                break;
            }
        }
        for rule in self.table.raises.iter().filter(|rule| rule.from.contains(&found.0)) {
            if self.applies(rule, &case)? {
                found = (rule.ty.unwrap_or(default), because(rule, role, tied));
                break;
            }
        }
        Ok(found)
    }

    /// Counts the tensors of this role before the current one, then counts the current one.
    fn count(&mut self, role: Role) -> usize {
        let seen = match role {
            _ if role.is_values() => &mut self.seen.values,
            Role::FfnUp => &mut self.seen.up,
            Role::FfnGate => &mut self.seen.gate,
            Role::FfnDown => &mut self.seen.down,
            _ => return 0,
        };
        *seen += 1;
        *seen - 1
    }

    fn applies(&self, rule: &Rule, case: &Case<'_>) -> Result<bool, Error> {
        if !rule.targets.has(&self.target) || !rule.roles.has(&case.role) {
            return Ok(false);
        }
        self.all_hold(&rule.conditions, case)
    }

    fn all_hold(&self, conditions: &[Condition], case: &Case<'_>) -> Result<bool, Error> {
        for condition in conditions {
            if self.holds(&condition.test, case)? != condition.wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn holds(&self, test: &Test, case: &Case<'_>) -> Result<bool, Error> {
        let Self { facts, .. } = self;
        let n = if case.role.is_values() { self.values } else { facts.layers };
        Ok(match test {
            Test::GqaFrom(least) => facts.gqa() >= *least,
            Test::Grouped => facts.heads != facts.kv_heads,
            Test::Experts(count) => facts.experts == *count,
            Test::ExpertsFrom(least) => facts.experts >= *least,
            Test::Layers(count) => facts.layers == *count,
            Test::Imatrix => facts.imatrix,
            Test::Stacked => stacked(case.tensor.shape),
            Test::Uneven => {
                !row(case.tensor.shape).is_multiple_of(self.target.default_type().elements())
            }
            Test::Arch(name) => facts.arch == *name,
            Test::Name(part) => case.tensor.name.contains(part),
            Test::NthBelow(bound) => case.nth < bound.of(n),
            Test::LayerBelow(bound) => self.layer(case)? < bound.of(n),
            Test::LayerFrom(bound) => self.layer(case)? >= bound.of(n),
            Test::More => {
                let at = self.layer(case)?;
                at < n / 8 || at >= 7 * n / 8 || (at - n / 8) % 3 == 2
            }
        })
    }

    fn layer(&self, case: &Case<'_>) -> Result<usize, Error> {
        if self.facts.experts <= 1 || case.role.is_values() {
            return Ok(case.nth);
        }
        let layers = self.facts.layers;
        layer(case.tensor.name)
            .filter(|&at| at < layers)
            .ok_or_else(|| Error::NoLayer { tensor: shown(case.tensor.name), layers })
    }

    fn needs_importance(&self, role: Role, ty: BlockType) -> bool {
        let low = ty.importance() != Importance::Optional;
        // A type may be too low for a mix alone.
        let low = low || (ty == BlockType::Q2K && self.target.name() == "Q2_K_S");
        low && !matches!(role, Role::Output | Role::Embedding)
    }
}

fn because(rule: &Rule, role: Role, tied: bool) -> String {
    if rule.ty.is_none() {
        return "default".into();
    }
    let role = if tied { "embedding as output" } else { role.name() };
    if rule.why.is_empty() { role.into() } else { format!("{role}: {}", rule.why) }
}

/// Returns the substitute for a type whose blocks do not divide the rows.
fn fallback(tensor: &Tensor<'_>, ty: BlockType, why: String) -> Result<(BlockType, String), Error> {
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
