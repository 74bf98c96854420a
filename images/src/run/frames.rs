//! Steps on frames.

use registry::diag::{Finding, Span};
use registry::scalar::Scalar;
use registry::syntax::{Expr, Ident};

use super::geometry::{self, Sides};
use super::{FramePixels, PictureFrame, PictureScope, scale};
use crate::picture::{CHANNELS, Picture};
use crate::resample::{BackEnd, ResampleFilter, resize};
use crate::sheet::{Extent, GuardedStep, PadPlace, Step};

impl PictureScope {
    /// Makes steps in order.
    pub(crate) fn steps(
        &mut self,
        steps: &[GuardedStep],
        mut frames: Vec<PictureFrame>,
    ) -> Result<Vec<PictureFrame>, Finding> {
        for step in steps {
            self.look_at(frames.first());
            if self.holds(step.when.as_ref())? {
                frames = self.step(step, frames)?;
                if frames.len() > self.limits.frames {
                    let label =
                        format!("found {}, expected at most {}", frames.len(), self.limits.frames);
                    return Err(Finding::error(&step.at, "there are too many frames").label(label));
                }
            }
        }
        self.look_at(frames.first());
        Ok(frames)
    }

    fn step(
        &mut self,
        guarded: &GuardedStep,
        frames: Vec<PictureFrame>,
    ) -> Result<Vec<PictureFrame>, Finding> {
        let at = &guarded.at;
        match &guarded.step {
            Step::Let(names) => {
                self.name_all(names)?;
                Ok(frames)
            }
            Step::Refuse(condition, because) => {
                if self.holds(Some(condition))? {
                    return Err(Finding::error(&condition.at, because.as_str())
                        .help("give a picture that the processor takes"));
                }
                Ok(frames)
            }
            Step::Choose(choice) => {
                if let Some(frame) = frames.first() {
                    self.choose(choice, frame, at)?;
                }
                Ok(frames)
            }
            Step::Steps(steps) => self.steps(steps, frames),
            Step::Join(branches) => {
                let mut joined = Vec::new();
                for branch in branches {
                    self.look_at(frames.first());
                    if let [step] = branch.as_slice()
                        && self.holds(step.when.as_ref())?
                    {
                        joined.extend(self.step(step, frames.clone())?);
                    }
                }
                Ok(joined)
            }
            Step::Cut(extent) => {
                let mut pieces = Vec::new();
                for frame in &frames {
                    self.look_at(Some(frame));
                    self.cut(picture(frame, at)?, extent, &mut pieces)?;
                }
                Ok(pieces)
            }
            step => frames.into_iter().map(|frame| self.each(step, frame, at)).collect(),
        }
    }

    /// Makes a step on one frame.
    fn each(
        &mut self,
        step: &Step,
        frame: PictureFrame,
        at: &Span,
    ) -> Result<PictureFrame, Finding> {
        self.look_at(Some(&frame));
        match step {
            Step::Resize(extent) => {
                let sides = self.extent(extent)?;
                self.resized(picture(&frame, at)?, sides, at)
            }
            Step::ResizeBy(name) => {
                let size = self.named(&name.name, &name.at)?;
                let sides = Sides { height: frame.height, width: frame.width };
                let sides = geometry::resized(sides, size, &name.at)?;
                self.resized(picture(&frame, at)?, sides, at)
            }
            Step::Pad(extent, place, fill) => {
                self.padded(picture(&frame, at)?, extent, *place, fill.as_ref())
            }
            Step::Crop(name) => self.cropped(picture(&frame, at)?, name),
            Step::Scale(rounding) => {
                let table = self.levels(*rounding, at)?;
                let values = scale::planes(picture(&frame, at)?, &table);
                let shape = vec![CHANNELS, frame.height, frame.width];
                Ok(PictureFrame { pixels: FramePixels::Numbers(values, shape), ..frame })
            }
            Step::Patches(layout) => self.patch(&frame, layout),
            _ => Ok(frame),
        }
    }

    /// Returns sides, none of them zero and all pixels within the limit.
    fn extent(&self, extent: &Extent) -> Result<Sides, Finding> {
        let height = self.size(&extent.height)?;
        let width = self.size(&extent.width)?;
        self.bounded(Sides { height, width }, &extent.height.at)
    }

    /// Checks the sides of a frame that a step makes, and counts its pixels.
    fn bounded(&self, sides: Sides, at: &Span) -> Result<Sides, Finding> {
        let limits = &self.limits;
        let pixels = sides.height.saturating_mul(sides.width);
        let longest = sides.height.max(sides.width);
        if pixels == 0 || pixels > limits.pixels || longest > limits.side {
            let message = format!("a frame cannot have {} x {} pixels", sides.height, sides.width);
            return Err(Finding::error(at, message)
                .label(format!(
                    "expected 1 to {} pixels, in sides of at most {}",
                    limits.pixels, limits.side
                ))
                .help("give a picture with a milder ratio, or other sizes in the configuration"));
        }
        self.pixels.set(self.pixels.get().saturating_add(pixels));
        if self.pixels.get() > limits.all_pixels {
            let label = format!("expected at most {} pixels in all", limits.all_pixels);
            return Err(Finding::error(at, "the frames of the picture are too large together")
                .label(label)
                .help("write other sizes in the configuration"));
        }
        Ok(sides)
    }

    fn resized(&self, picture: &Picture, sides: Sides, at: &Span) -> Result<PictureFrame, Finding> {
        let sides = self.bounded(sides, at)?;
        let number = self.named("resample", at)?;
        let filter = match number {
            Scalar::Int(number) => ResampleFilter::numbered(*number),
            Scalar::Null => Some(ResampleFilter::Bilinear),
            _ => None,
        };
        let filter = filter.ok_or_else(|| {
            Finding::error(at, "`resample` is no filter")
                .label(format!("found {}, expected 0 to 5", super::shown(number)))
        })?;
        if self.back_end == BackEnd::Torchvision
            && matches!(filter, ResampleFilter::Box | ResampleFilter::Hamming)
        {
            let message = format!("torchvision has no filter `{}`", filter.name());
            return Err(
                Finding::error(at, message).help("open the processor with the back end `pil`")
            );
        }
        Ok(resize(picture, sides.height, sides.width, filter, self.back_end).into())
    }

    fn cut(
        &self,
        picture: &Picture,
        extent: &Extent,
        pieces: &mut Vec<PictureFrame>,
    ) -> Result<(), Finding> {
        let sides = self.extent(extent)?;
        let rows = picture.height().div_ceil(sides.height);
        let columns = picture.width().div_ceil(sides.width);
        if rows.saturating_mul(columns) > self.limits.frames {
            let label =
                format!("found {rows} x {columns}, expected at most {}", self.limits.frames);
            return Err(Finding::error(&extent.height.at, "there are too many frames").label(label));
        }
        for row in 0..rows {
            for column in 0..columns {
                let top = row * sides.height;
                let left = column * sides.width;
                let height = sides.height.min(picture.height() - top);
                let width = sides.width.min(picture.width() - left);
                pieces.push(picture.part(top, left, height, width).into());
            }
        }
        Ok(())
    }

    fn padded(
        &self,
        picture: &Picture,
        extent: &Extent,
        place: PadPlace,
        fill: Option<&Expr>,
    ) -> Result<PictureFrame, Finding> {
        let sides = self.extent(extent)?;
        if sides.height < picture.height() || sides.width < picture.width() {
            let message = format!(
                "a frame of {} x {} pixels is not widened to {} x {}",
                picture.height(),
                picture.width(),
                sides.height,
                sides.width
            );
            return Err(Finding::error(&extent.height.at, message));
        }
        let colour = fill.map_or(Ok([0; CHANNELS]), |fill| self.colour(fill))?;
        let mut wider = Picture::filled(sides.height, sides.width, colour);
        let top = sides.height - picture.height();
        let left = sides.width - picture.width();
        match place {
            PadPlace::Centre => wider.paste(picture, top / 2, left / 2),
            PadPlace::Start => wider.paste(picture, 0, 0),
        }
        Ok(wider.into())
    }

    fn colour(&self, fill: &Expr) -> Result<[u8; CHANNELS], Finding> {
        let value = self.value(fill)?;
        let byte = |item: &Scalar| item.as_usize().and_then(|level| u8::try_from(level).ok());
        let bytes: Option<Vec<u8>> = match &value {
            Scalar::List(items) => items.iter().map(byte).collect(),
            other => byte(other).map(|level| vec![level; CHANNELS]),
        };
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
            Finding::error(&fill.at, "this is no colour").label(format!(
                "found {}, expected {CHANNELS} numbers from 0 to 255",
                super::shown(&value)
            ))
        })
    }

    /// Returns the part of a border that is above or to the left of a frame.
    fn border(&self, pixels: usize) -> usize {
        match self.back_end {
            BackEnd::Torchvision => pixels / 2,
            BackEnd::Pil | BackEnd::OlderPil => pixels.div_ceil(2),
        }
    }

    /// Takes the centre of a frame, widened with black where it is too small. The two back ends put the odd row or
    /// column of that border on different sides.
    fn cropped(&self, picture: &Picture, name: &Ident) -> Result<PictureFrame, Finding> {
        let size = self.named(&name.name, &name.at)?;
        let sides = geometry::stated(size).ok_or_else(|| {
            Finding::error(&name.at, "the setting is no size of a crop")
                .label(format!("found {size}, expected `height` and `width`"))
        })?;
        let sides = self.bounded(sides, &name.at)?;
        let wider = Sides {
            height: sides.height.max(picture.height()),
            width: sides.width.max(picture.width()),
        };
        let wider = self.bounded(wider, &name.at)?;
        let mut canvas = Picture::filled(wider.height, wider.width, [0; CHANNELS]);
        canvas.paste(
            picture,
            self.border(wider.height - picture.height()),
            self.border(wider.width - picture.width()),
        );
        let top = (wider.height - sides.height) / 2;
        let left = (wider.width - sides.width) / 2;
        Ok(canvas.part(top, left, sides.height, sides.width).into())
    }
}

/// Returns the bytes of a frame.
fn picture<'f>(frame: &'f PictureFrame, at: &Span) -> Result<&'f Picture, Finding> {
    match &frame.pixels {
        FramePixels::Bytes(picture) => Ok(picture),
        FramePixels::Numbers(..) => {
            Err(Finding::error(at, "this step works on bytes")
                .help("write the step before `scale`"))
        }
    }
}
