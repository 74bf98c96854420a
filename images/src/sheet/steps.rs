//! Steps of a file.

use registry::diag::Finding;
use registry::yaml::{YamlMap, YamlNode};

use super::read::SheetReader;
use super::{Choice, Extent, GuardedStep, PadPlace, PatchAxis, PatchLayout, Step, keys};

/// Axes of a patch, all of which an order has to name.
const AXIS_COUNT: usize = keys::AXES.len();

impl SheetReader {
    /// Reads the steps of the list behind a key.
    pub(super) fn guarded_list(&mut self, map: &YamlMap, key: &str) -> Vec<GuardedStep> {
        let nodes = self.tree.list_of(map, key);
        nodes.iter().filter_map(|node| self.guarded(node)).collect()
    }

    fn guarded(&mut self, node: &YamlNode) -> Option<GuardedStep> {
        let map = self.tree.map(node, "a step", &keys::STEP)?;
        let when = self.expr(map, "when");
        let mut kinds = map
            .keys()
            .filter(|key| !matches!(key.as_str(), "when" | "about" | "because" | "place" | "fill"));
        let kind = kinds.next().cloned();
        if let Some(second) = kinds.next() {
            let message = format!("a step has one kind, and this one has `{second}` too");
            let finding = Finding::error(&node.at, message);
            self.tree.findings.push(finding.help("write each step as an item of the list"));
        }
        let Some(kind) = kind else {
            self.tree.findings.push(Finding::error(&node.at, "a step needs a kind"));
            return None;
        };
        let step = self.step(map, &kind, node)?;
        Some(GuardedStep { when, at: node.at.clone(), step })
    }

    fn step(&mut self, map: &YamlMap, kind: &str, node: &YamlNode) -> Option<Step> {
        let value = &map.get(kind)?.value;
        Some(match kind {
            "let" => Step::Let(self.names(map)?),
            "refuse" => {
                let because = self.tree.needed(map, "because", node, "`refuse`")?;
                Step::Refuse(self.expr_of(value)?, because.name)
            }
            "resize" if value.text().is_some() => Step::ResizeBy(self.tree.word(map, kind)?),
            "resize" => Step::Resize(self.extent(value)?),
            "choose" => Step::Choose(self.choose(value)?),
            "cut" => Step::Cut(self.extent(value)?),
            "join" => {
                let mut branches = Vec::new();
                for branch in self.tree.list(value) {
                    let inner = self.tree.map(branch, "a branch", &keys::BRANCH)?;
                    branches.push(self.branch(inner, branch));
                }
                Step::Join(branches)
            }
            "steps" => Step::Steps(self.guarded_list(map, kind)),
            "pad" => {
                let place = self.tree.choice(map, "place", &keys::PLACES);
                let fill = self.expr(map, "fill");
                Step::Pad(self.extent(value)?, place.unwrap_or(PadPlace::Start), fill)
            }
            "crop" => Step::Crop(self.tree.word(map, kind)?),
            "scale" => Step::Scale(self.tree.choice(map, kind, &keys::ROUNDINGS)?),
            _ => Step::Patches(self.patches(value)?),
        })
    }

    /// Reads a branch: its steps, which its condition guards together. A branch that is not taken has no frames.
    fn branch(&mut self, map: &YamlMap, node: &YamlNode) -> Vec<GuardedStep> {
        let when = self.expr(map, "when");
        let steps = self.guarded_list(map, "steps");
        vec![GuardedStep { when, at: node.at.clone(), step: Step::Steps(steps) }]
    }

    fn extent(&mut self, node: &YamlNode) -> Option<Extent> {
        let map = self.tree.map(node, "a size", &keys::EXTENT)?;
        let height = self.needed(map, "height", node, "a size");
        let width = self.needed(map, "width", node, "a size");
        Some(Extent { height: height?, width: width? })
    }

    fn choose(&mut self, node: &YamlNode) -> Option<Choice> {
        let map = self.tree.map(node, "a choice", &keys::CHOICE)?;
        if let Some(entry) = map.get("ratio") {
            let inner = self.tree.map(&entry.value, "a choice by ratio", &keys::RATIO)?;
            return Some(Choice::Ratio {
                least: self.needed(inner, "least", &entry.value, "a choice by ratio")?,
                limit: self.needed(inner, "most", &entry.value, "a choice by ratio")?,
                area: self.needed(inner, "area", &entry.value, "a choice by ratio")?,
            });
        }
        if let Some(entry) = map.get("canvas") {
            let inner = self.tree.map(&entry.value, "a choice of a canvas", &keys::CANVAS)?;
            return Some(Choice::Canvas {
                limit: self.needed(inner, "most", &entry.value, "a choice of a canvas")?,
                side: self.needed(inner, "side", &entry.value, "a choice of a canvas")?,
                largest: self.needed(inner, "largest", &entry.value, "a choice of a canvas")?,
            });
        }
        self.needed(map, "resolution", node, "a choice").map(Choice::Resolution)
    }

    fn patches(&mut self, node: &YamlNode) -> Option<PatchLayout> {
        let map = self.tree.map(node, "a division into patches", &keys::PATCHES)?;
        let names =
            map.get("order").map(|entry| self.tree.strings(&entry.value)).unwrap_or_default();
        let mut order: Vec<PatchAxis> = Vec::new();
        for name in &names {
            let known = keys::AXES.iter().find(|(word, _)| word == name);
            order.extend(known.map(|(_, axis)| *axis));
        }
        for (word, axis) in keys::AXES {
            if order.iter().filter(|other| **other == axis).count() != 1 {
                let message = format!("`order` has to name `{word}` once");
                self.tree.findings.push(Finding::error(&node.at, message));
            }
        }
        if names.len() != AXIS_COUNT {
            let message = format!("`order` names {} axes, expected {AXIS_COUNT}", names.len());
            self.tree.findings.push(Finding::error(&node.at, message));
        }
        Some(PatchLayout {
            height: self.needed(map, "height", node, "a division into patches")?,
            width: self.needed(map, "width", node, "a division into patches")?,
            merge: self.expr(map, "merge"),
            time: self.expr(map, "time"),
            order,
        })
    }
}
