//! Rows of pictures in a prompt of a text model.

use engine::{GivenRows, refuse_prefix, refuse_spans};
use registry::model::Model;

use crate::encoder::EncodedFrame;
use crate::error::Error;

/// Rows, positions and masks of a prompt with pictures, for a text model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PicturePrompt {
    /// Rows in the place of embeddings, and positions.
    pub given: GivenRows,
    /// Tokens at the start that see each other.
    pub prefix: usize,
    /// Ranges of tokens that see each other.
    pub spans: Vec<(usize, usize)>,
}

impl PicturePrompt {
    /// Puts the rows of frames where a prompt has the token of an image.
    pub fn new(
        frames: &[EncodedFrame],
        tokens: &[u32],
        image_token: u32,
        text: &Model,
    ) -> Result<Self, Error> {
        let at: Vec<usize> = (0..tokens.len()).filter(|n| tokens[*n] == image_token).collect();
        let count: usize = frames.iter().map(|frame| frame.lines * frame.columns).sum();
        if at.len() != count {
            return Err(Error::Pixels(format!(
                "the prompt has {} tokens of images (token {image_token}), and the pictures give {count} rows; write the \
                 placeholder of an image once for each picture, and in no other place",
                at.len()
            )));
        }
        let Some((_, width)) = text.embedding() else {
            return Err(Error::Pixels(format!(
                "`{}` has no embedding that rows could replace",
                text.name
            )));
        };
        let spans = if refuse_spans(text).is_empty() { runs(&at) } else { Vec::new() };
        let prefix = if refuse_prefix(text).is_empty() { tokens.len() } else { 0 };
        let positions = positions(frames, tokens, image_token, text);
        let (rows, beside) = divided(frames, width)?;
        let beside = beside.into_iter().take(text.graph.beside).collect();
        Ok(Self { given: GivenRows { at, rows, beside, positions }, prefix, spans })
    }
}

/// Divides rows into those for embeddings and those behind layers.
fn divided(frames: &[EncodedFrame], width: usize) -> Result<(Vec<f32>, Vec<Vec<f32>>), Error> {
    let mut rows = Vec::new();
    let mut beside: Vec<Vec<f32>> = Vec::new();
    for frame in frames {
        if width == 0 || !frame.width.is_multiple_of(width) {
            let message = format!(
                "the encoder gives rows of {} numbers; the text model takes {width}",
                frame.width
            );
            return Err(Error::Pixels(message));
        }
        beside.resize(frame.width / width - 1, Vec::new());
        for row in frame.rows.chunks_exact(frame.width) {
            rows.extend_from_slice(&row[..width]);
            for (layer, part) in beside.iter_mut().zip(row[width..].chunks_exact(width)) {
                layer.extend_from_slice(part);
            }
        }
    }
    Ok((rows, beside))
}

/// Returns ranges of consecutive positions.
fn runs(at: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for position in at {
        match runs.last_mut() {
            Some((_, end)) if end == position => *end += 1,
            _ => runs.push((*position, position + 1)),
        }
    }
    runs
}

/// Returns the positions of tokens in three axes, for a model whose rotary tables read several: text counts on in all axes, and a row
/// of an image has its line and its column in two of them.
fn positions(
    frames: &[EncodedFrame],
    tokens: &[u32],
    image_token: u32,
    text: &Model,
) -> Vec<Vec<u32>> {
    if text.ropes.iter().all(|table| table.axis_count() < 2) {
        return Vec::new();
    }
    let mut axes = vec![Vec::new(); 3];
    let mut next = 0;
    let mut frames = frames.iter();
    let mut left = 0;
    for token in tokens {
        if *token != image_token {
            push(&mut axes, [next; 3]);
            next += 1;
        } else if left > 0 {
            left -= 1;
        } else if let Some(frame) = frames.next() {
            let lines = frame.lines as u32;
            let columns = frame.columns as u32;
            for line in 0..lines {
                for column in 0..columns {
                    push(&mut axes, [next, next + line, next + column]);
                }
            }
            next += lines.max(columns);
            left = frame.lines * frame.columns - 1;
        }
    }
    axes
}

/// Adds the position of a token to the axes.
fn push(axes: &mut [Vec<u32>], position: [u32; 3]) {
    axes.iter_mut().zip(position).for_each(|(axis, position)| axis.push(position));
}
