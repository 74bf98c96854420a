//! Maps a range of a flow's values to pieces of its sources.

use registry::weight_map::HeadLayout;

use super::{Computed, Flow, Node, Numbers};
use formats::safetensors::FileDtype;

/// Piece of a range, in order.
enum Piece<'p, 'a> {
    /// Count of values of a source, from an index on.
    Source(&'p (dyn Numbers + 'a), usize, usize),
    /// Count of computed values, from an index on.
    Computed(&'p Flow<'a>, &'p Computed, usize, usize),
    /// Count of zeros.
    Zeros(usize),
}

impl<'a> Flow<'a> {
    /// Reads the values from index `at` on.
    pub fn read(&self, at: usize, out: &mut [f32]) {
        let mut done = 0;
        self.walk(at, out.len(), &mut |piece| match piece {
            Piece::Source(source, from, count) => {
                source.read(from, &mut out[done..done + count]);
                done += count;
            }
            Piece::Computed(of, how, from, count) => {
                let out = &mut out[done..done + count];
                of.read(from, out);
                how.apply(from, out);
                done += count;
            }
            Piece::Zeros(count) => {
                out[done..done + count].fill(0.0);
                done += count;
            }
        });
    }

    /// Copies values in their stored dtype. Returns true if that is `dtype` and no step computes.
    pub fn copy(&self, dtype: FileDtype, at: usize, out: &mut [u8]) -> bool {
        let size = dtype.size();
        let (mut done, mut plain) = (0, true);
        self.walk(at, out.len() / size, &mut |piece| {
            let Piece::Source(source, from, count) = piece else {
                plain = false;
                return;
            };
            match source.bytes() {
                Some((kept, bytes)) if kept == dtype && plain => {
                    let bytes = &bytes[from * size..(from + count) * size];
                    out[done..done + bytes.len()].copy_from_slice(bytes);
                    done += bytes.len();
                }
                _ => plain = false,
            }
        });
        plain
    }

    /// Returns the bytes of the whole tensor, if they are stored uncompressed in one range.
    pub fn stretch(&self) -> Option<&[u8]> {
        let (mut whole, mut next): (Option<&[u8]>, usize) = (None, 0);
        let mut one = true;
        self.walk(0, self.len(), &mut |piece| {
            let Piece::Source(source, from, count) = piece else {
                one = false;
                return;
            };
            let Some((dtype, bytes)) = source.bytes() else {
                one = false;
                return;
            };
            let (from, end) = (from * dtype.size(), (from + count) * dtype.size());
            match whole {
                None => whole = Some(&bytes[from..]),
                Some(first) => {
                    // Another tensor may begin at the end of this one, but its bytes belong to it alone.
                    let expected = first.get(next..next + end - from).map(<[u8]>::as_ptr);
                    one &= expected.is_some() && expected == bytes.get(from..).map(<[u8]>::as_ptr);
                }
            }
            next += end - from;
        });
        whole.filter(|_| one).map(|bytes| &bytes[..next])
    }

    /// Returns the dtype of the sources, if they share one and no step computes.
    pub fn dtype(&self) -> Option<FileDtype> {
        match &*self.node {
            Node::Source(source) => source.bytes().map(|(dtype, _)| dtype),
            Node::Shaped(of)
            | Node::Cut { of, .. }
            | Node::Heads { of, .. }
            | Node::Swapped { of, .. }
            | Node::Resized { of } => of.dtype(),
            Node::Join { parts, .. } => {
                let first = parts.first()?.0.dtype()?;
                parts.iter().all(|(part, _)| part.dtype() == Some(first)).then_some(first)
            }
            Node::Computed { .. } => None,
        }
    }

    /// Visits every piece of a range, in order.
    fn walk<'p>(&'p self, at: usize, count: usize, visit: &mut dyn FnMut(Piece<'p, 'a>)) {
        if count == 0 {
            return;
        }
        match &*self.node {
            Node::Source(source) => visit(Piece::Source(&**source, at, count)),
            Node::Computed { of, how } => visit(Piece::Computed(of, how, at, count)),
            Node::Shaped(of) => of.walk(at, count, visit),
            Node::Resized { of } => {
                let there = of.len().saturating_sub(at).min(count);
                of.walk(at, there, visit);
                if there < count {
                    visit(Piece::Zeros(count - there));
                }
            }
            Node::Cut { of, from, size, whole, run } => {
                let (mine, all) = (size * run, whole * run);
                runs(at, count, mine, |outer, offset, count| {
                    of.walk(outer * all + from * run + offset, count, visit);
                });
            }
            Node::Join { parts, whole } => {
                runs(at, count, *whole, |outer, offset, count| {
                    let (mut offset, mut left) = (offset, count);
                    for (part, chunk) in parts {
                        if offset >= *chunk {
                            offset -= chunk;
                            continue;
                        }
                        let now = left.min(chunk - offset);
                        part.walk(outer * chunk + offset, now, visit);
                        (offset, left) = (0, left - now);
                        if left == 0 {
                            break;
                        }
                    }
                });
            }
            Node::Heads { of, row, half, to } => {
                runs(at, count, *row, |r, offset, count| {
                    let (head, r) = (r / (2 * half), r % (2 * half));
                    let from = match to {
                        HeadLayout::Interleaved => r / 2 + r % 2 * half,
                        HeadLayout::Half => r % half * 2 + r / half,
                    };
                    of.walk((head * 2 * half + from) * row + offset, count, visit);
                });
            }
            Node::Swapped { of, strides } => {
                swapped(&self.shape, strides, at, count, &mut |at, count| {
                    of.walk(at, count, visit);
                });
            }
        }
    }
}

/// Cuts a range at multiples of `period`: `(index, offset in it, count)`.
fn runs(at: usize, count: usize, period: usize, mut visit: impl FnMut(usize, usize, usize)) {
    let (mut at, end) = (at, at + count);
    while at < end {
        let (which, offset) = (at / period, at % period);
        let now = (period - offset).min(end - at);
        visit(which, offset, now);
        at += now;
    }
}

/// Visits the source runs of a range of a tensor whose axes have these strides.
fn swapped(
    shape: &[usize],
    strides: &[usize],
    at: usize,
    count: usize,
    visit: &mut dyn FnMut(usize, usize),
) {
    // The innermost axes that kept their place form one contiguous run.
    let (mut kept, mut run) = (shape.len(), 1);
    while kept > 0 && strides[kept - 1] == run {
        run *= shape[kept - 1];
        kept -= 1;
    }
    runs(at, count, run, |which, offset, count| {
        let (mut rest, mut from) = (which, offset);
        for axis in (0..kept).rev() {
            from += rest % shape[axis] * strides[axis];
            rest /= shape[axis];
        }
        visit(from, count);
    });
}
