//! Processors as data: the files `images/processors/NAME.yaml`.
//!
//! A file serves classes of image processors by name. It lists the keys of their configuration with the values of the
//! class, the steps that make frames of a picture, the results, and how classes of whole processors write the
//! placeholder of an image. docs/images.md describes the words; the reasons are in
//! [decision 117](../../docs/decisions/0117-image-processors-as-data.md).

use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use registry::diag::{Finding, SourceText, Span};
use registry::scalar::Scalar;
use registry::syntax::{Expr, Ident};

include!(concat!(env!("OUT_DIR"), "/processors.rs"));

mod keys;
mod read;
mod steps;

/// A kind of image processor.
#[derive(Debug)]
pub struct ProcessorSheet {
    /// Name of the file without its end.
    pub name: String,
    /// Classes of image processors that the file serves, in the names without `Fast` and `Pil`.
    pub images: Vec<String>,
    /// Keys of `preprocessor_config.json` and the values of the class.
    pub settings: IndexMap<String, Scalar>,
    /// Values of classes that differ from `settings` in nothing else.
    pub values: IndexMap<String, IndexMap<String, Scalar>>,
    /// Keys that hold sizes, with the side that a single number gives.
    pub sizes: IndexMap<String, SizeSide>,
    /// Keys that change nothing.
    pub ignored: Vec<String>,
    /// True if the class exists with torchvision alone.
    pub torchvision_only: bool,
    /// Steps from a picture to its frames.
    pub(crate) steps: Vec<GuardedStep>,
    /// Results by name.
    pub(crate) outputs: IndexMap<String, ResultRule>,
    /// Rules of placeholders.
    pub prompts: Vec<PromptRule>,
}

/// The meaning of a single number in the place of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeSide {
    /// Height and width.
    Square,
    /// The shortest edge.
    Edge,
}

/// A step that is made if a condition holds.
#[derive(Debug)]
pub(crate) struct GuardedStep {
    pub(crate) when: Option<Expr>,
    pub(crate) at: Span,
    pub(crate) step: Step,
}

/// A pair of expressions.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) height: Expr,
    pub(crate) width: Expr,
}

/// One step.
#[derive(Debug)]
pub(crate) enum Step {
    /// Gives names to values.
    Let(Vec<(Ident, Expr)>),
    /// Refuses a picture.
    Refuse(Expr, String),
    /// Resizes every frame.
    Resize(Extent),
    /// Resizes every frame by a setting that holds a size.
    ResizeBy(Ident),
    /// Chooses a grid or a resolution.
    Choose(Choice),
    /// Cuts every frame into pieces of a size, rows first.
    Cut(Extent),
    /// Makes the frames of several branches of the same frames.
    Join(Vec<Vec<GuardedStep>>),
    /// Makes steps in order.
    Steps(Vec<GuardedStep>),
    /// Widens every frame to a size.
    Pad(Extent, PadPlace, Option<Expr>),
    /// Takes the centre of every frame by a setting that holds a size.
    Crop(Ident),
    /// Rescales and normalises every frame.
    Scale(PixelRounding),
    /// Cuts every frame into rows of numbers.
    Patches(PatchLayout),
}

/// Place of a frame in a wider one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PadPlace {
    /// The middle; an odd pixel goes below or to the right.
    Centre,
    /// The top left corner.
    Start,
}

/// Dtype of rescaling and normalising.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelRounding {
    Float32,
    BFloat16,
}

/// Rules that choose among many grids.
#[derive(Debug)]
pub(crate) enum Choice {
    /// The grid of tiles whose ratio is nearest: gives `tile_rows` and `tile_columns`.
    Ratio {
        least: Expr,
        limit: Expr,
        /// Pixels of a tile.
        area: Expr,
    },
    /// The resolution of a list that keeps most pixels: gives `target_height` and `target_width`.
    Resolution(Expr),
    /// The canvas of square tiles that needs least scaling: gives `target_height` and `target_width`.
    Canvas {
        limit: Expr,
        side: Expr,
        /// True to enlarge as far as possible.
        largest: Expr,
    },
}

/// Axes of a patch's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchAxis {
    /// Rows of blocks.
    BlockRow,
    /// Columns of blocks.
    BlockColumn,
    /// Rows of patches in a block.
    Row,
    /// Columns of patches in a block.
    Column,
    /// Channels.
    Channel,
    /// Repetitions in the place of time.
    Time,
    /// Rows of pixels in a patch.
    Y,
    /// Columns of pixels in a patch.
    X,
}

/// Division of a frame into patches.
#[derive(Debug)]
pub(crate) struct PatchLayout {
    pub(crate) height: Expr,
    pub(crate) width: Expr,
    /// Patches along a side of a block.
    pub(crate) merge: Option<Expr>,
    /// Repetitions of each pixel.
    pub(crate) time: Option<Expr>,
    /// All eight axes, slowest first.
    pub(crate) order: Vec<PatchAxis>,
}

/// A result.
#[derive(Debug)]
pub(crate) struct ResultRule {
    pub(crate) when: Option<Expr>,
    pub(crate) at: Span,
    pub(crate) kind: OutputKind,
}

/// Kinds of results.
#[derive(Debug)]
pub(crate) enum OutputKind {
    /// Numbers of the frames.
    Frames(FrameLayout),
    /// One where a frame has pixels or rows, and zero where it was padded.
    Mask(FrameLayout),
    /// One number for each picture; true for a leading axis of one.
    Number(Expr, bool),
    /// Numbers for each picture.
    Numbers(Vec<Expr>),
    /// Numbers for each frame.
    Each(Vec<Expr>),
    /// Column and row of every patch of a frame, and -1 behind them up to a number of rows.
    Positions { rows: Expr, columns: Expr, count: Expr },
}

/// Arrangement of frames in one result.
#[derive(Debug)]
pub(crate) struct FrameLayout {
    pub(crate) shape: FrameShape,
    /// Rows to which patches are padded with zeros.
    pub(crate) rows: Option<Expr>,
    /// True to pad all frames to the largest with zeros.
    pub(crate) largest: Option<Expr>,
}

/// Leading axes of frames in a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameShape {
    /// Rows of all frames one after another.
    Join,
    /// All frames of all pictures.
    Stack,
    /// An axis of one, and all frames.
    Batch,
    /// Pictures, and the frames of each, padded with frames of zeros.
    Pictures,
}

/// The text in the place of an image's placeholder.
#[derive(Debug)]
pub struct PromptRule {
    /// Classes of whole processors.
    pub classes: Vec<String>,
    /// Tokens: attributes of the tokenizer or of the processor, with the words of the class.
    pub tokens: IndexMap<String, String>,
    /// Keys of `processor_config.json` and the values of the class.
    pub settings: IndexMap<String, Scalar>,
    /// Settings that the class gives to the image processor in every call.
    pub call: IndexMap<String, Scalar>,
    /// Name of the token that the text replaces.
    pub replaces: String,
    pub(crate) parts: Vec<PromptPart>,
}

/// A part of the text.
#[derive(Debug)]
pub(crate) struct PromptPart {
    pub(crate) when: Option<Expr>,
    pub(crate) times: Option<Expr>,
    pub(crate) at: Span,
    pub(crate) kind: PartKind,
}

/// Kinds of parts.
#[derive(Debug)]
pub(crate) enum PartKind {
    /// A token by its name.
    Token(Ident),
    /// Text with expressions in braces.
    Text(Vec<TextPiece>),
    /// Parts for each number from zero below a count.
    For(Ident, Expr, Vec<PromptPart>),
    /// Names for values.
    Let(Vec<(Ident, Expr)>),
    /// Parts one after another.
    Parts(Vec<PromptPart>),
}

/// A piece of a text.
#[derive(Debug)]
pub(crate) enum TextPiece {
    Plain(String),
    Hole(Expr),
}

impl ProcessorSheet {
    /// Reads a file, or returns everything that is wrong with it.
    pub fn read(source: &Arc<SourceText>) -> Result<Self, Vec<Finding>> {
        read::read(source)
    }

    /// Returns the files that the program embeds. Tests read each of them, so none is left out.
    pub fn all() -> &'static [Self] {
        static SHEETS: OnceLock<Vec<ProcessorSheet>> = OnceLock::new();
        SHEETS.get_or_init(|| sources().filter_map(|source| Self::read(&source).ok()).collect())
    }

    /// Returns the values of a class.
    pub fn settings_of(&self, class: &str) -> IndexMap<String, Scalar> {
        let mut settings = self.settings.clone();
        settings.extend(
            self.values
                .get(class)
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        settings
    }

    /// Returns the file that serves a class of image processors.
    pub fn of_images(class: &str) -> Option<&'static Self> {
        Self::all().iter().find(|sheet| sheet.images.iter().any(|name| name == class))
    }

    /// Returns the rule of a class of whole processors, whichever file has it.
    pub fn prompt_of(class: &str) -> Option<&'static PromptRule> {
        let mut rules = Self::all().iter().flat_map(|sheet| &sheet.prompts);
        rules.find(|rule| rule.classes.iter().any(|name| name == class))
    }
}

/// Returns the texts of the files.
fn sources() -> impl Iterator<Item = Arc<SourceText>> {
    PROCESSORS.iter().map(|(path, text)| source(path, text))
}

fn source(path: &str, text: &str) -> Arc<SourceText> {
    Arc::new(SourceText { path: path.to_owned(), text: text.to_owned() })
}

#[cfg(test)]
mod tests;
