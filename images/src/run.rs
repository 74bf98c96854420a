//! Runs the steps of a sheet on one picture.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use registry::config::Config;
use registry::diag::{Finding, Span};
use registry::eval::{Env, EvalError, EvalResult, Fuel, eval_owned, truth};
use registry::listing::shortened;
use registry::scalar::Scalar;
use registry::suggest;
use registry::syntax::{Expr, Ident};

use crate::picture::Picture;
use crate::resample::BackEnd;

mod choose;
mod frames;
mod geometry;
mod outputs;
mod patches;
mod prompt;
mod scale;

pub(crate) use outputs::{RunPicture, assemble};
pub use outputs::{Tensor, Values};
pub(crate) use prompt::write as write_prompt;
pub use prompt::{ImagePrompt, PromptPiece};

/// Steps of evaluation for one picture.
const FUEL: u64 = 1_000_000;
/// Most characters of a value in a message.
const SHOWN: usize = 80;

/// Bounds of what is made of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    /// Most pixels of one frame.
    pub pixels: usize,
    /// Longest side of a frame, also of a picture: weights of resampling need memory for every pixel of it.
    pub side: usize,
    /// Most pixels of all frames that are made of a picture on its way.
    pub all_pixels: usize,
    /// Most frames of one picture.
    pub frames: usize,
    /// Most numbers in one result.
    pub numbers: usize,
    /// Most tokens and pieces of text in a prompt.
    pub tokens: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            pixels: 1 << 26,
            side: 1 << 18,
            all_pixels: 1 << 28,
            frames: 1024,
            numbers: 1 << 29,
            tokens: 1 << 20,
        }
    }
}

/// A piece of a picture on its way to numbers.
#[derive(Debug, Clone)]
pub(crate) struct PictureFrame {
    /// Rows of pixels, also of a frame that is patches by now.
    pub(crate) height: usize,
    /// Columns of pixels.
    pub(crate) width: usize,
    pub(crate) pixels: FramePixels,
}

/// Pixels of a frame.
#[derive(Debug, Clone)]
pub(crate) enum FramePixels {
    Bytes(Picture),
    /// Numbers with their shape: channels, rows and columns, or patches and their numbers.
    Numbers(Vec<f32>, Vec<usize>),
}

impl From<Picture> for PictureFrame {
    fn from(picture: Picture) -> Self {
        Self {
            height: picture.height(),
            width: picture.width(),
            pixels: FramePixels::Bytes(picture),
        }
    }
}

/// Names and values around the expressions of one picture.
pub(crate) struct PictureScope {
    names: BTreeMap<String, Scalar>,
    config: Config,
    fuel: Fuel,
    /// Pixels of all frames so far.
    pixels: Cell<usize>,
    pub(crate) back_end: BackEnd,
    pub(crate) limits: FrameLimits,
}

impl Env for PictureScope {
    fn lookup(&self, name: &Ident) -> EvalResult<'_> {
        if let Some(value) = self.names.get(&name.name) {
            return Ok(Cow::Borrowed(value));
        }
        let message = format!("there is no value `{}` here", name.name);
        let mut finding = Finding::error(&name.at, message);
        finding.help = suggest::help(&name.name, self.names.keys().map(String::as_str));
        Err(finding.into())
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn fuel(&self) -> &Fuel {
        &self.fuel
    }
}

impl PictureScope {
    /// Creates the scope of a picture around settings.
    pub(crate) fn new(
        settings: impl IntoIterator<Item = (String, Scalar)>,
        picture: &Picture,
        back_end: BackEnd,
        limits: FrameLimits,
    ) -> Self {
        let mut scope = Self {
            names: settings.into_iter().collect(),
            config: Config::of("settings", Scalar::Map(Vec::new())),
            fuel: Fuel::new(FUEL),
            pixels: Cell::new(0),
            back_end,
            limits,
        };
        scope.set("back_end", Scalar::Str(back_end.name().to_owned()));
        scope.count("input_height", picture.height());
        scope.count("input_width", picture.width());
        scope
    }

    pub(crate) fn set(&mut self, name: &str, value: Scalar) {
        self.names.insert(name.to_owned(), value);
    }

    /// Gives a name to a count.
    pub(crate) fn count(&mut self, name: &str, count: usize) {
        self.set(name, Scalar::Int(i64::try_from(count).unwrap_or(i64::MAX)));
    }

    /// Gives the names `height` and `width` to the sides of a frame.
    pub(crate) fn look_at(&mut self, frame: Option<&PictureFrame>) {
        if let Some(frame) = frame {
            self.count("height", frame.height);
            self.count("width", frame.width);
        }
    }

    pub(crate) fn value(&self, expr: &Expr) -> Result<Scalar, Finding> {
        eval_owned(expr, self).map_err(|error| match error {
            EvalError::Finding(finding) => *finding,
            EvalError::Reported => Finding::error(&expr.at, "the expression has no value"),
        })
    }

    /// Gives names to values, each of which may use those before it.
    pub(crate) fn name_all(&mut self, names: &[(Ident, Expr)]) -> Result<(), Finding> {
        for (name, expr) in names {
            let value = self.value(expr)?;
            self.set(&name.name, value);
        }
        Ok(())
    }

    /// Returns the value of a name that a step needs.
    pub(crate) fn named(&self, name: &str, at: &Span) -> Result<&Scalar, Finding> {
        self.names.get(name).ok_or_else(|| {
            Finding::error(at, format!("this step needs the setting `{name}`"))
                .help(format!("write `{name}` under `settings`"))
        })
    }

    /// Returns a condition's truth; true if there is none.
    pub(crate) fn holds(&self, condition: Option<&Expr>) -> Result<bool, Finding> {
        condition.map_or(Ok(true), |condition| self.value(condition).map(|value| truth(&value)))
    }

    /// Returns a count.
    pub(crate) fn size(&self, expr: &Expr) -> Result<usize, Finding> {
        let value = self.value(expr)?;
        value.as_usize().ok_or_else(|| {
            let label = format!("expected a count, found {}", shown(&value));
            Finding::error(&expr.at, "this is no count").label(label)
        })
    }

    /// Returns an integer.
    pub(crate) fn integer(&self, expr: &Expr) -> Result<i64, Finding> {
        match self.value(expr)? {
            Scalar::Int(number) => Ok(number),
            Scalar::Bool(flag) => Ok(i64::from(flag)),
            other => {
                let label = format!("expected an integer, found {}", shown(&other));
                Err(Finding::error(&expr.at, "this is no integer").label(label))
            }
        }
    }
}

/// Returns the beginning of a value for a message.
fn shown(value: &Scalar) -> String {
    shortened(&value.to_string(), SHOWN).into_owned()
}
