//! Parses `rules.txt`.

use std::sync::OnceLock;

use super::target::MixTarget;
use formats::codec::BlockType;

/// Role of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MixRole {
    Output,
    Embedding,
    AttnQkv,
    AttnKvB,
    AttnV,
    AttnK,
    AttnQ,
    AttnOutput,
    FfnUp,
    FfnGate,
    FfnDown,
    Other,
}

const ROLES: &[(&str, MixRole)] = &[
    ("output", MixRole::Output),
    ("embedding", MixRole::Embedding),
    ("attn_qkv", MixRole::AttnQkv),
    ("attn_kv_b", MixRole::AttnKvB),
    ("attn_v", MixRole::AttnV),
    ("attn_k", MixRole::AttnK),
    ("attn_q", MixRole::AttnQ),
    ("attn_output", MixRole::AttnOutput),
    ("ffn_up", MixRole::FfnUp),
    ("ffn_gate", MixRole::FfnGate),
    ("ffn_down", MixRole::FfnDown),
    ("other", MixRole::Other),
];

impl MixRole {
    pub(super) fn name(self) -> &'static str {
        ROLES.iter().find(|row| row.1 == self).expect("the list has all").0
    }

    /// True for attention values, alone or merged with other projections.
    pub(super) fn is_values(self) -> bool {
        matches!(self, Self::AttnV | Self::AttnQkv | Self::AttnKvB)
    }
}

/// Name of a tensor, or a part of it.
#[derive(Debug)]
pub(super) enum NamePattern {
    Is(&'static str),
    Has(&'static str),
}

impl NamePattern {
    pub(super) fn fits(&self, name: &str) -> bool {
        match self {
            Self::Is(full_name) => name == *full_name,
            Self::Has(part) => name.contains(part),
        }
    }
}

/// Constant, or a fraction of `n`: `times * n / over`.
#[derive(Debug)]
pub(super) struct LayerBound {
    times: usize,
    over: usize,
    constant: usize,
}

impl LayerBound {
    pub(super) fn of(&self, n: usize) -> usize {
        self.times * n / self.over + self.constant
    }
}

#[derive(Debug)]
pub(super) enum MixTest {
    GqaFrom(u32),
    Grouped,
    Experts(u32),
    ExpertsFrom(u32),
    Layers(usize),
    Imatrix,
    Stacked,
    Uneven,
    Arch(&'static str),
    Name(&'static str),
    NthBelow(LayerBound),
    LayerBelow(LayerBound),
    LayerFrom(LayerBound),
    More,
}

/// Test with its expected result.
#[derive(Debug)]
pub(super) struct Condition {
    pub(super) test: MixTest,
    pub(super) wanted: bool,
}

/// List with a match rule: one entry must match, or none may. An empty list matches everything.
#[derive(Debug)]
pub(super) struct Filter<T> {
    list: Vec<T>,
    wanted: bool,
}

impl<T: PartialEq> Filter<T> {
    pub(super) fn has(&self, item: &T) -> bool {
        self.list.is_empty() || self.list.contains(item) == self.wanted
    }
}

#[derive(Debug)]
pub(super) struct MixRule {
    pub(super) targets: Filter<MixTarget>,
    pub(super) roles: Filter<MixRole>,
    pub(super) conditions: Vec<Condition>,
    /// Types that the rule applies to; all if empty.
    pub(super) from: Vec<BlockType>,
    /// New type; none for the target's own.
    pub(super) ty: Option<BlockType>,
    /// Conditions as written in the table.
    pub(super) why: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct MixTable {
    sets: Vec<(&'static str, Vec<&'static str>)>,
    pub(super) keeps: Vec<(NamePattern, Vec<Condition>)>,
    pub(super) roles: Vec<(MixRole, Vec<NamePattern>)>,
    pub(super) rules: Vec<MixRule>,
    pub(super) raises: Vec<MixRule>,
}

impl MixTable {
    pub(super) fn get() -> &'static Self {
        static TABLE: OnceLock<MixTable> = OnceLock::new();
        TABLE.get_or_init(|| Self::parse(include_str!("rules.txt")).expect("a test reads it"))
    }

    fn parse(text: &'static str) -> Result<Self, String> {
        let mut table = Self::default();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                table.line(line).ok_or_else(|| format!("line {}: {line}", n + 1))?;
            }
        }
        Ok(table)
    }

    fn line(&mut self, line: &'static str) -> Option<()> {
        let (word, tail) = line.split_once(' ')?;
        match word {
            "set" => {
                let (name, words) = tail.split_once('=')?;
                self.sets.push((name.trim(), words.split_whitespace().collect()));
            }
            "keep" => {
                let (part, when) = tail.split_once('|').unwrap_or((tail, ""));
                self.keeps.push((name(part.trim()), conditions(when)?));
            }
            "role" => {
                let (role, names) = tail.split_once('=')?;
                let names = names.split_whitespace().map(name).collect();
                self.roles.push((parse_role(role.trim())?, names));
            }
            "rule" => {
                let rule = self.rule(tail)?;
                self.rules.push(rule);
            }
            "raise" => {
                let rule = self.rule(tail)?;
                self.raises.push(rule);
            }
            _ => return None,
        }
        Some(())
    }

    fn rule(&self, text: &'static str) -> Option<MixRule> {
        let columns: Vec<&str> = text.split('|').map(str::trim).collect();
        let [targets, roles, when, ty] = columns[..] else { return None };
        let (from, ty) = ty.split_once("->").unwrap_or(("", ty));
        Some(MixRule {
            targets: self.choice(targets, |name| MixTarget::parse(name).ok())?,
            roles: self.choice(roles, parse_role)?,
            conditions: conditions(when)?,
            from: types(from)?,
            ty: match ty.trim() {
                "default" => None,
                name => Some(BlockType::parse(name)?),
            },
            why: when,
        })
    }

    fn choice<T>(&self, text: &'static str, parse: fn(&str) -> Option<T>) -> Option<Filter<T>> {
        let (text, expected) =
            text.strip_prefix('!').map_or((text, true), |negated| (negated, false));
        let mut list = Vec::new();
        for word in text.split_whitespace().filter(|&word| word != "*") {
            let set = self.sets.iter().find(|set| set.0 == word);
            let words = set.map_or(std::slice::from_ref(&word), |set| &set.1);
            for word in words {
                list.push(parse(word)?);
            }
        }
        Some(Filter { list, wanted: expected })
    }
}

fn name(text: &'static str) -> NamePattern {
    text.strip_prefix('=').map_or(NamePattern::Has(text), NamePattern::Is)
}

fn parse_role(name: &str) -> Option<MixRole> {
    ROLES.iter().find(|row| row.0 == name).map(|row| row.1)
}

fn types(text: &str) -> Option<Vec<BlockType>> {
    text.split_whitespace().map(BlockType::parse).collect()
}

fn conditions(text: &'static str) -> Option<Vec<Condition>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (part, expected) =
                part.strip_prefix('!').map_or((part, true), |negated| (negated, false));
            Some(Condition { test: test(part)?, wanted: expected })
        })
        .collect()
}

fn test(text: &'static str) -> Option<MixTest> {
    let at = text.find(['<', '>', '=']).unwrap_or(text.len());
    let (word, tail) = text.split_at(at);
    let value = tail.trim_start_matches(['<', '>', '=']);
    Some(match (word, &tail[..tail.len() - value.len()]) {
        ("gqa", ">=") => MixTest::GqaFrom(value.parse().ok()?),
        ("grouped", "") => MixTest::Grouped,
        ("experts", "=") => MixTest::Experts(value.parse().ok()?),
        ("experts", ">=") => MixTest::ExpertsFrom(value.parse().ok()?),
        ("layers", "=") => MixTest::Layers(value.parse().ok()?),
        ("imatrix", "") => MixTest::Imatrix,
        ("stacked", "") => MixTest::Stacked,
        ("uneven", "") => MixTest::Uneven,
        ("arch", "=") => MixTest::Arch(value),
        ("name", "=") => MixTest::Name(value),
        ("nth", "<") => MixTest::NthBelow(bound(value)?),
        ("layer", "<") => MixTest::LayerBelow(bound(value)?),
        ("layer", ">=") => MixTest::LayerFrom(bound(value)?),
        ("more", "") => MixTest::More,
        _ => return None,
    })
}

fn bound(text: &str) -> Option<LayerBound> {
    let Some((times, over)) = text.split_once("n/") else {
        return Some(LayerBound { times: 0, over: 1, constant: text.parse().ok()? });
    };
    let times = if times.is_empty() { 1 } else { times.parse().ok()? };
    let over = over.parse().ok().filter(|&over| over > 0)?;
    Some(LayerBound { times, over, constant: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let table = MixTable::parse(include_str!("rules.txt")).unwrap();
        assert!(table.rules.len() > 70 && table.keeps.len() > 40);
        assert_eq!(table.roles.len() + 1, ROLES.len());
        for wrong in ["rules a", "rule q4_k_m | * | more", "rule q9 | * | | Q8_0", "keep a | moon"]
        {
            assert!(MixTable::parse(wrong).unwrap_err().starts_with("line 1: "), "{wrong}");
        }
    }

    #[test]
    fn bounds_are_whole_numbers() {
        for (text, expected) in [("n/8", 1), ("7n/8", 13), ("3", 3)] {
            assert_eq!(bound(text).unwrap().of(15), expected);
        }
        assert!(bound("n/0").is_none() && bound("x").is_none());
    }
}
