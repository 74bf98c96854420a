//! Maps a range of a flow's values to pieces of its sources.

use std::ops::ControlFlow::{self, Break, Continue};

use rayon::prelude::*;
use registry::weight_map::HeadLayout;

use super::{Flow, FlowNode, ValueReader, ValueStep};
use formats::safetensors::FileDtype;

/// Number of values that a thread computes at a time.
const PIECE: usize = 1 << 16;

/// Piece of a range, in order.
enum SourceRange<'p, 'a> {
    /// Count of values of a source, from an index on.
    Source(&'p (dyn ValueReader + 'a), usize, usize),
    /// Count of computed values, from an index on.
    Computed(&'p Flow<'a>, &'p ValueStep, usize, usize),
    /// Count of zeros.
    Zeros(usize),
}

impl SourceRange<'_, '_> {
    fn count(&self) -> usize {
        match self {
            Self::Source(.., count) | Self::Computed(.., count) | Self::Zeros(count) => *count,
        }
    }
}

impl<'a> Flow<'a> {
    /// Reads the values from index `at` on.
    pub fn read(&self, at: usize, out: &mut [f32]) {
        let mut done = 0;
        let _all = self.walk(at, out.len(), &mut |piece| {
            let next = done + piece.count();
            let out = &mut out[done..next];
            match piece {
                SourceRange::Source(source, from, _) => source.read(from, out),
                SourceRange::Computed(of, how, from, _) => {
                    of.read(from, out);
                    how.apply(from, out);
                }
                SourceRange::Zeros(_) => out.fill(0.0),
            }
            done = next;
            Continue(())
        });
    }

    /// Copies values in their stored dtype. Returns true if that is `dtype` and no step computes.
    pub fn copy(&self, dtype: FileDtype, at: usize, out: &mut [u8]) -> bool {
        let size = dtype.size();
        let mut done = 0;
        let walked = self.walk(at, out.len() / size, &mut |piece| {
            let next = done + piece.count() * size;
            let out = &mut out[done..next];
            match piece {
                SourceRange::Source(source, from, _) => {
                    let same_dtype =
                        source.bytes().is_some_and(|(stored_dtype, _)| stored_dtype == dtype);
                    if !(same_dtype && source.copy(from * size, out)) {
                        return Break(());
                    }
                }
                SourceRange::Zeros(_) => out.fill(0),
                SourceRange::Computed(..) => return Break(()),
            }
            done = next;
            Continue(())
        });
        walked.is_continue()
    }

    /// Returns the bytes of all values: in the stored dtype if [`Flow::dtype`] has one, else in f32.
    pub fn bytes(&self) -> Vec<u8> {
        let dtype = self.dtype();
        let size = dtype.unwrap_or(FileDtype::F32).size();
        let mut bytes = vec![0; self.len() * size];
        let pieces = bytes.par_chunks_mut(PIECE * size).enumerate();
        pieces.for_each(|(n, out)| {
            if dtype.is_some_and(|dtype| self.copy(dtype, n * PIECE, out)) {
                return;
            }
            let mut numbers = vec![0.0; out.len() / size];
            self.read(n * PIECE, &mut numbers);
            let (places, _) = out.as_chunks_mut();
            places.iter_mut().zip(numbers).for_each(|(place, x)| *place = x.to_le_bytes());
        });
        bytes
    }

    /// Returns the bytes of the whole tensor, if they are stored uncompressed in one range.
    pub fn stretch(&self) -> Option<&[u8]> {
        let mut stretch: Option<&[u8]> = None;
        let mut next = 0_usize;
        let walked = self.walk(0, self.len(), &mut |piece| {
            let SourceRange::Source(source, from, count) = piece else { return Break(()) };
            let Some((dtype, bytes)) = source.bytes() else { return Break(()) };
            let end = (from + count) * dtype.size();
            let from = from * dtype.size();
            match stretch {
                None => stretch = Some(&bytes[from..]),
                Some(first) => {
                    // Another tensor may begin at the end of this one, but its bytes belong to it alone.
                    let expected = first.get(next..next + end - from).map(<[u8]>::as_ptr);
                    if expected.is_none() || expected != bytes.get(from..).map(<[u8]>::as_ptr) {
                        return Break(());
                    }
                }
            }
            next += end - from;
            Continue(())
        });
        // A tensor without values is an empty range of any.
        let none = self.is_empty() && self.dtype().is_some();
        let stretch = if none { Some(&[][..]) } else { stretch };
        stretch.filter(|_| walked.is_continue()).map(|bytes| &bytes[..next])
    }

    /// Returns the dtype of the sources, if they share one and no step computes.
    pub fn dtype(&self) -> Option<FileDtype> {
        match &*self.node {
            FlowNode::Source(source) => source.bytes().map(|(dtype, _)| dtype),
            FlowNode::Shaped(of)
            | FlowNode::Cut { of, .. }
            | FlowNode::Heads { of, .. }
            | FlowNode::Swapped { of, .. }
            | FlowNode::Resized { of } => of.dtype(),
            FlowNode::Join { parts, .. } => {
                let first = parts.first()?.0.dtype()?;
                parts.iter().all(|(part, _)| part.dtype() == Some(first)).then_some(first)
            }
            FlowNode::Computed { .. } => None,
        }
    }

    /// Returns the first dtype among the sources that encodes no values on its own. Integers of 32 and 64 bits do: lists of
    /// experts are stored so.
    pub(crate) fn no_numbers(&self) -> Option<FileDtype> {
        match &*self.node {
            FlowNode::Source(source) => {
                let dtype = source.bytes().map(|(dtype, _)| dtype);
                dtype.filter(|dtype| {
                    !dtype.is_float() && !matches!(dtype, FileDtype::I64 | FileDtype::I32)
                })
            }
            FlowNode::Shaped(of)
            | FlowNode::Cut { of, .. }
            | FlowNode::Heads { of, .. }
            | FlowNode::Swapped { of, .. }
            | FlowNode::Resized { of }
            | FlowNode::Computed { of, .. } => of.no_numbers(),
            FlowNode::Join { parts, .. } => parts.iter().find_map(|(part, _)| part.no_numbers()),
        }
    }

    /// Visits every piece of a range, in order, until a visit breaks.
    fn walk<'p>(
        &'p self,
        at: usize,
        count: usize,
        visit: &mut dyn FnMut(SourceRange<'p, 'a>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if count == 0 {
            return Continue(());
        }
        match &*self.node {
            FlowNode::Source(source) => visit(SourceRange::Source(&**source, at, count)),
            FlowNode::Computed { of, how } => visit(SourceRange::Computed(of, how, at, count)),
            FlowNode::Shaped(of) => of.walk(at, count, visit),
            FlowNode::Resized { of } => {
                let there = of.len().saturating_sub(at).min(count);
                of.walk(at, there, visit)?;
                if there < count { visit(SourceRange::Zeros(count - there)) } else { Continue(()) }
            }
            FlowNode::Cut { of, from, size, whole: axis_size, run } => {
                let mine = size * run;
                let all = axis_size * run;
                runs(at, count, mine, |outer, offset, count| {
                    of.walk(outer * all + from * run + offset, count, visit)
                })
            }
            FlowNode::Join { parts, whole: total } => {
                runs(at, count, *total, |outer, offset, count| {
                    let mut offset = offset;
                    let mut left = count;
                    for (part, chunk) in parts {
                        if offset >= *chunk {
                            offset -= chunk;
                            continue;
                        }
                        let now = left.min(chunk - offset);
                        part.walk(outer * chunk + offset, now, visit)?;
                        (offset, left) = (0, left - now);
                        if left == 0 {
                            break;
                        }
                    }
                    Continue(())
                })
            }
            FlowNode::Heads { of, row, half, to } => runs(at, count, *row, |r, offset, count| {
                let head = r / (2 * half);
                let r = r % (2 * half);
                let from = match to {
                    HeadLayout::Interleaved => r / 2 + r % 2 * half,
                    HeadLayout::Half => r % half * 2 + r / half,
                };
                of.walk((head * 2 * half + from) * row + offset, count, visit)
            }),
            FlowNode::Swapped { of, axes: [a, b] } => {
                let axes = 0..of.shape.len();
                let mut strides: Vec<usize> = axes.map(|axis| of.inner(axis)).collect();
                strides.swap(*a, *b);
                swapped(&self.shape, &strides, at, count, &mut |at, count| {
                    of.walk(at, count, visit)
                })
            }
        }
    }
}

/// Cuts a range at multiples of `period`: `(index, offset in it, count)`.
fn runs(
    at: usize,
    count: usize,
    period: usize,
    mut visit: impl FnMut(usize, usize, usize) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let end = at + count;
    let mut at = at;
    while at < end {
        let which = at / period;
        let offset = at % period;
        let now = (period - offset).min(end - at);
        visit(which, offset, now)?;
        at += now;
    }
    Continue(())
}

/// Visits the source runs of a range of a tensor whose axes have these strides.
fn swapped(
    shape: &[usize],
    strides: &[usize],
    at: usize,
    count: usize,
    visit: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> ControlFlow<()> {
    // The innermost axes that kept their place form one contiguous run; an axis of 1 has no order.
    let mut outer_axes = shape.len();
    let mut run = 1;
    while outer_axes > 0 && (strides[outer_axes - 1] == run || shape[outer_axes - 1] == 1) {
        run *= shape[outer_axes - 1];
        outer_axes -= 1;
    }
    runs(at, count, run, |which, offset, count| {
        let mut index = which;
        let mut from = offset;
        for axis in (0..outer_axes).rev() {
            from += index % shape[axis] * strides[axis];
            index /= shape[axis];
        }
        visit(from, count)
    })
}
