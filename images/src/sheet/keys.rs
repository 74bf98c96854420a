//! Keys of the files, and the words that some of them take.

use super::{FrameShape, PadPlace, PatchAxis, PixelRounding, SizeSide};

pub(super) const SHEET: [&str; 10] = [
    "processor",
    "about",
    "images",
    "settings",
    "values",
    "sizes",
    "ignored",
    "torchvision_only",
    "steps",
    "outputs",
];
pub(super) const PROMPTS: &str = "prompts";
pub(super) const STEP: [&str; 16] = [
    "when", "let", "refuse", "because", "resize", "choose", "cut", "join", "steps", "pad", "crop",
    "scale", "patches", "about", "place", "fill",
];
pub(super) const EXTENT: [&str; 2] = ["height", "width"];
pub(super) const BRANCH: [&str; 2] = ["when", "steps"];
pub(super) const CHOICE: [&str; 3] = ["ratio", "resolution", "canvas"];
pub(super) const RATIO: [&str; 3] = ["least", "most", "area"];
pub(super) const CANVAS: [&str; 3] = ["most", "side", "largest"];
pub(super) const PATCHES: [&str; 5] = ["height", "width", "merge", "time", "order"];
pub(super) const OUTPUT: [&str; 10] = [
    "when",
    "frames",
    "mask",
    "rows",
    "largest",
    "number",
    "numbers",
    "each",
    "batch",
    "positions",
];
pub(super) const POSITIONS: [&str; 3] = ["rows", "columns", "count"];
pub(super) const PROMPT: [&str; 7] =
    ["about", "classes", "tokens", "settings", "call", "replaces", "parts"];
pub(super) const PART: [&str; 8] =
    ["when", "let", "times", "token", "text", "for", "below", "parts"];

pub(super) const SIDES: [(&str, SizeSide); 2] =
    [("square", SizeSide::Square), ("edge", SizeSide::Edge)];
pub(super) const PLACES: [(&str, PadPlace); 2] =
    [("centre", PadPlace::Centre), ("start", PadPlace::Start)];
pub(super) const ROUNDINGS: [(&str, PixelRounding); 2] =
    [("float32", PixelRounding::Float32), ("bfloat16", PixelRounding::BFloat16)];
pub(super) const SHAPES: [(&str, FrameShape); 4] = [
    ("join", FrameShape::Join),
    ("stack", FrameShape::Stack),
    ("batch", FrameShape::Batch),
    ("pictures", FrameShape::Pictures),
];
pub(super) const AXES: [(&str, PatchAxis); 8] = [
    ("block_row", PatchAxis::BlockRow),
    ("block_column", PatchAxis::BlockColumn),
    ("row", PatchAxis::Row),
    ("column", PatchAxis::Column),
    ("channel", PatchAxis::Channel),
    ("time", PatchAxis::Time),
    ("y", PatchAxis::Y),
    ("x", PatchAxis::X),
];
