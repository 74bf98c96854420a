//! Results of all pictures.

use registry::diag::{Finding, Span};
use registry::syntax::Expr;

use super::{FramePixels, PictureFrame, PictureScope};
use crate::sheet::{FrameLayout, FrameShape, OutputKind, ResultRule};

/// Numbers of a result with their shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Length of every axis, slowest first.
    pub shape: Vec<usize>,
    /// The numbers.
    pub values: Values,
}

/// Numbers of one of two kinds.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Pixel values.
    Float(Vec<f32>),
    /// Masks, sizes and counts.
    Int(Vec<i64>),
}

/// A picture's frames with the names around them.
pub(crate) struct RunPicture {
    pub(crate) frames: Vec<PictureFrame>,
    pub(crate) scope: PictureScope,
}

/// Assembles a result; none if its condition does not hold.
pub(crate) fn assemble(
    output: &ResultRule,
    pictures: &mut [RunPicture],
) -> Result<Option<Tensor>, Finding> {
    let Some(first) = pictures.first() else { return Ok(None) };
    if !first.scope.holds(output.when.as_ref())? {
        return Ok(None);
    }
    match &output.kind {
        OutputKind::Number(expr, batch) => {
            let mut values = Vec::with_capacity(pictures.len());
            for picture in pictures.iter() {
                values.push(picture.scope.integer(expr)?);
            }
            let count = values.len();
            let shape = if *batch { vec![1, count] } else { vec![count] };
            Ok(Some(Tensor { shape, values: Values::Int(values) }))
        }
        OutputKind::Numbers(exprs) => {
            let mut values = Vec::new();
            for picture in pictures.iter() {
                push_all(&picture.scope, exprs, &mut values)?;
            }
            let shape = vec![pictures.len(), exprs.len()];
            Ok(Some(Tensor { shape, values: Values::Int(values) }))
        }
        OutputKind::Each(exprs) => {
            let mut values = Vec::new();
            let mut count = 0;
            for picture in pictures.iter_mut() {
                for frame in &picture.frames {
                    count += 1;
                    picture.scope.look_at(Some(frame));
                    push_all(&picture.scope, exprs, &mut values)?;
                }
                picture.scope.look_at(picture.frames.first());
            }
            let shape = vec![count, exprs.len()];
            Ok(Some(Tensor { shape, values: Values::Int(values) }))
        }
        OutputKind::Positions { rows, columns, count } => {
            let mut values = Vec::new();
            let mut frames = 0;
            let mut length = 0;
            for picture in pictures.iter_mut() {
                for frame in &picture.frames {
                    picture.scope.look_at(Some(frame));
                    length = picture.scope.size(count)?;
                    push_positions(&picture.scope, [rows, columns], length, &mut values)?;
                    frames += 1;
                }
                picture.scope.look_at(picture.frames.first());
            }
            let shape = vec![frames, length, 2];
            Ok(Some(Tensor { shape, values: Values::Int(values) }))
        }
        OutputKind::Frames(layout) => {
            let arrangement = Arrangement::of(layout, pictures, &output.at)?;
            let mut values = vec![0.0; arrangement.count];
            arrangement.fill(pictures, |place, numbers| {
                values[place..place + numbers.len()].copy_from_slice(numbers);
            });
            Ok(Some(Tensor { shape: arrangement.shape, values: Values::Float(values) }))
        }
        OutputKind::Mask(layout) => mask(layout, pictures, &output.at).map(Some),
    }
}

fn push_all(scope: &PictureScope, exprs: &[Expr], values: &mut Vec<i64>) -> Result<(), Finding> {
    for expr in exprs {
        values.push(scope.integer(expr)?);
    }
    Ok(())
}

/// Appends column and row of each patch of a frame, and -1 up to a count.
fn push_positions(
    scope: &PictureScope,
    [rows, columns]: [&Expr; 2],
    count: usize,
    values: &mut Vec<i64>,
) -> Result<(), Finding> {
    let height = scope.size(rows)?;
    let width = scope.size(columns)?;
    let patches = height.saturating_mul(width);
    let all = count.saturating_mul(2).saturating_add(values.len());
    if patches > count || all > scope.limits.numbers {
        let label = format!("found {height} x {width} of {count}");
        return Err(Finding::error(&rows.at, "there are too many patches").label(label));
    }
    for patch in 0..patches {
        values.push((patch % width) as i64);
        values.push((patch / width) as i64);
    }
    values.resize(all, -1);
    Ok(())
}

/// Returns the numbers and the shape of a frame.
fn numbers<'f>(frame: &'f PictureFrame, at: &Span) -> Result<(&'f [f32], &'f [usize]), Finding> {
    match &frame.pixels {
        FramePixels::Numbers(values, shape) => Ok((values, shape)),
        FramePixels::Bytes(_) => {
            Err(Finding::error(at, "a result is made of numbers").help("write the step `scale`"))
        }
    }
}

/// Places of frames in one result.
struct Arrangement {
    shape: Vec<usize>,
    count: usize,
    /// Shape of a frame's place, which may be larger than the frame.
    slot: Vec<usize>,
    /// Slots of one picture; none if frames follow one another.
    slots: Option<usize>,
    joins: bool,
}

impl Arrangement {
    fn of(layout: &FrameLayout, pictures: &[RunPicture], at: &Span) -> Result<Self, Finding> {
        let Some(first) = pictures.iter().find_map(|picture| picture.frames.first()) else {
            return Err(Finding::error(at, "no picture has a frame"));
        };
        let scope = &pictures[0].scope;
        let mut slot = numbers(first, at)?.1.to_vec();
        let largest = layout.largest.as_ref();
        let widens = largest.is_some() && scope.holds(largest)?;
        if widens && layout.shape != FrameShape::Pictures {
            for frame in pictures.iter().flat_map(|picture| &picture.frames) {
                for (side, other) in slot.iter_mut().zip(numbers(frame, at)?.1) {
                    *side = (*side).max(*other);
                }
            }
        }
        if let Some(rows) = &layout.rows {
            slot[0] = slot[0].max(scope.size(rows)?);
        }
        let frames: usize = pictures.iter().map(|picture| picture.frames.len()).sum();
        let slots_each = pictures.iter().map(|picture| picture.frames.len()).max().unwrap_or(0);
        let mut shape = match layout.shape {
            FrameShape::Join => Vec::new(),
            FrameShape::Stack => vec![frames],
            FrameShape::Batch => vec![1, frames],
            FrameShape::Pictures => vec![pictures.len(), slots_each],
        };
        shape.extend(&slot);
        let joins = layout.shape == FrameShape::Join;
        let fixed = if joins { &slot[1..] } else { &slot[..] };
        for picture in pictures {
            if layout.shape == FrameShape::Pictures && picture.frames.len() != slots_each && !widens
            {
                return Err(unequal(at, &[picture.frames.len()], &[slots_each], "frames"));
            }
            for frame in &picture.frames {
                let shape = numbers(frame, at)?.1;
                let inner = if joins { &shape[1..] } else { shape };
                let fits = inner.len() == fixed.len()
                    && inner.iter().zip(fixed).all(|(side, space)| side <= space);
                // Rows may be fewer where they are padded, other sides only where frames are widened.
                let padded = usize::from(layout.rows.is_some() && !joins);
                if !fits || !(widens || inner[padded..] == fixed[padded..]) {
                    return Err(unequal(at, inner, fixed, "numbers"));
                }
            }
        }
        if joins {
            let rows = pictures.iter().flat_map(|picture| &picture.frames);
            shape[0] = rows.map(|frame| numbers(frame, at).map_or(0, |(_, shape)| shape[0])).sum();
        }
        let count = shape.iter().fold(1, |product: usize, side| product.saturating_mul(*side));
        if count > scope.limits.numbers {
            let label = format!("found {count}, expected at most {}", scope.limits.numbers);
            return Err(Finding::error(at, "the result has too many numbers")
                .label(label)
                .help("give fewer or smaller pictures"));
        }
        let slots = (layout.shape == FrameShape::Pictures).then_some(slots_each);
        Ok(Self { shape, count, slot, slots, joins })
    }

    /// Gives every run of numbers with its place in the result.
    fn fill(&self, pictures: &[RunPicture], mut write: impl FnMut(usize, &[f32])) {
        let size: usize = self.slot.iter().product();
        let mut place = 0;
        for (n, picture) in pictures.iter().enumerate() {
            if let Some(slots) = self.slots {
                place = n * slots * size;
            }
            for frame in &picture.frames {
                let FramePixels::Numbers(values, shape) = &frame.pixels else { continue };
                if self.joins || shape[1..] == self.slot[1..] {
                    write(place, values);
                } else {
                    self.fill_planes(place, values, shape, &mut write);
                }
                place += if self.joins { values.len() } else { size };
            }
        }
    }

    /// Writes the rows of each channel of a frame into a larger slot.
    fn fill_planes(
        &self,
        place: usize,
        values: &[f32],
        shape: &[usize],
        write: &mut impl FnMut(usize, &[f32]),
    ) {
        let [_, height, width] = shape else { return };
        let [_, slot_height, slot_width] = self.slot[..] else { return };
        for (n, row) in values.chunks_exact(*width).enumerate() {
            let plane = n / height;
            write(place + (plane * slot_height + n % height) * slot_width, row);
        }
    }
}

fn unequal(at: &Span, actual: &[usize], expected: &[usize], what: &str) -> Finding {
    let message = format!("pictures have different numbers of {what}: {actual:?} and {expected:?}");
    Finding::error(at, message).help("prepare these pictures one by one")
}

/// Makes a mask: one for each pixel or row that a frame has in its slot.
fn mask(layout: &FrameLayout, pictures: &[RunPicture], at: &Span) -> Result<Tensor, Finding> {
    let arrangement = Arrangement::of(layout, pictures, at)?;
    let is_patches = arrangement.slot.len() == 2;
    let lead = arrangement.shape.len() - arrangement.slot.len();
    let mut shape = arrangement.shape[..lead].to_vec();
    shape.extend(if is_patches { &arrangement.slot[..1] } else { &arrangement.slot[1..] });
    let size: usize = shape[lead..].iter().product();
    let mut values = vec![0; shape.iter().product()];
    let frames = pictures.iter().flat_map(|picture| &picture.frames);
    for (slot, frame) in values.chunks_exact_mut(size.max(1)).zip(frames) {
        let sides = numbers(frame, at)?.1;
        if is_patches {
            slot[..sides[0]].fill(1);
        } else {
            for row in slot.chunks_exact_mut(arrangement.slot[2]).take(sides[1]) {
                row[..sides[2]].fill(1);
            }
        }
    }
    Ok(Tensor { shape, values: Values::Int(values) })
}
