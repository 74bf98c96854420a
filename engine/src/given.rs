//! Rows in the place of embeddings, as an encoder gives them.
//!
//! They come with the tokens, not with the weights ([decision 116](../../docs/decisions/0116-rows-in-the-place-of-embeddings.md)).

use registry::diag::Finding;
use registry::model::Model;
use registry::ops::Trait;

use crate::Error;

/// Rows that a chunk brings besides its tokens, and the positions of the tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChunkGiven<'a> {
    /// Indices of the chunk's tokens whose embedding is replaced, ascending.
    pub at: &'a [usize],
    /// A row for each of them.
    pub rows: &'a [f32],
    /// For each of the first layers a row for each of these tokens, added to what the layer gives.
    pub beside: &'a [&'a [f32]],
    /// For each axis the positions of the chunk's tokens, by which rotary tables turn; empty if they count the tokens.
    /// A sequence that has them once needs them for all later tokens.
    pub positions: &'a [&'a [u32]],
}

impl ChunkGiven<'_> {
    /// True if nothing is given.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty() && self.positions.is_empty()
    }

    /// Checks the rows and positions of a chunk of `count` tokens, with rows of `width` numbers.
    fn check(&self, count: usize, width: usize, model: &Model) -> Result<(), String> {
        let ascends = self.at.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascends || self.at.last().is_some_and(|last| *last >= count) {
            return Err(format!(
                "rows are given for tokens {:?} of a chunk of {count}; expected ascending indices below {count}",
                self.at
            ));
        }
        let wanted = self.at.len() * width;
        if self.rows.len() != wanted {
            return Err(format!(
                "{} numbers are given in the place of {} embeddings; expected {wanted}, {width} for each",
                self.rows.len(),
                self.at.len()
            ));
        }
        let most = model.graph.beside;
        if self.beside.len() > most {
            return Err(format!(
                "rows are given behind {} layers; `{}` adds rows behind {most} (`layers: beside:` of its spec)",
                self.beside.len(),
                model.name
            ));
        }
        if let Some((layer, rows)) =
            self.beside.iter().enumerate().find(|(_, rows)| rows.len() != wanted)
        {
            return Err(format!(
                "{} numbers are given behind layer {layer}; expected {wanted}, {width} for each of {} tokens",
                rows.len(),
                self.at.len()
            ));
        }
        if let Some(axis) = self.positions.iter().find(|axis| axis.len() != count) {
            return Err(format!(
                "{} positions are given for a chunk of {count} tokens",
                axis.len()
            ));
        }
        Ok(())
    }

    /// Checks that the rotary tables of a model read the axes of the positions.
    fn check_axes(&self, model: &Model) -> Result<(), String> {
        let axes = self.positions.len();
        for table in &model.ropes {
            let wanted = table.axis_count();
            let alike = self.positions.windows(2).all(|pair| pair[0] == pair[1]);
            if axes > 0 && !alike && (table.axes.is_empty() || axes < wanted) {
                return Err(format!(
                    "positions have {axes} axes; the rotary table `{}` of `{}` reads {wanted} (`axes:` of its spec)",
                    table.name, model.name
                ));
            }
        }
        Ok(())
    }
}

/// Reasons that a model cannot be given rows, and that it cannot be given positions.
#[derive(Debug, Clone, Default)]
pub(crate) struct GivenLimits {
    /// The width of a row.
    width: usize,
    no_rows: Vec<Finding>,
    no_positions: Vec<Finding>,
}

impl GivenLimits {
    /// Returns the width of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn of(model: &Model) -> Self {
        Self {
            width: model.embedding().map_or(0, |(_, width)| width),
            no_rows: refuse_rows(model),
            no_positions: refuse_positions(model),
        }
    }

    /// Checks what is given with a chunk of a slot. `placed`: earlier chunks of the sequence had positions.
    pub(crate) fn check(
        &self,
        slot: usize,
        count: usize,
        given: &ChunkGiven<'_>,
        model: &Model,
        placed: bool,
    ) -> Result<(), Error> {
        let fail = |reason: String| Err(Error::Given { slot, reason });
        if !given.at.is_empty() && !self.no_rows.is_empty() {
            return fail(Error::Refused(self.no_rows.clone()).to_string());
        }
        if !given.positions.is_empty() && !self.no_positions.is_empty() {
            return fail(Error::Refused(self.no_positions.clone()).to_string());
        }
        if placed && given.positions.is_empty() {
            return fail(
                "its sequence has positions of its own, and these tokens have none; give them with every chunk"
                    .to_owned(),
            );
        }
        let checked = given.check(count, self.width, model).and_then(|()| given.check_axes(model));
        checked.or_else(fail)
    }
}

/// Returns the reasons that a model cannot be given rows in the place of embeddings.
pub fn refuse_rows(model: &Model) -> Vec<Finding> {
    if model.graph.encoder.is_some() {
        // It has patches, and positions of its own for its rotary tables.
        return Vec::new();
    }
    if model.graph.fed.is_some() {
        return vec![Finding::unplaced(
            "a head that reads hidden rows takes no rows in the place of embeddings",
        )];
    }
    if model.embedding().is_some() {
        return Vec::new();
    }
    let message =
        format!("`{}` has no embedding of `hidden` numbers that rows could replace", model.name);
    vec![Finding::unplaced(message)]
}

/// Returns the reasons that a model cannot be given positions, one for each op or table that counts by itself.
fn refuse_positions(model: &Model) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    // Ops that count the rows of an image count them whatever the axes of its rotary tables are.
    let counting = model.graph.nodes.iter().filter(|_| model.graph.encoder.is_none());
    for node in counting {
        if node.op.is(Trait::Positional) || node.argument("alibi").is_some() {
            let message =
                format!("op `{}` of `{}` counts positions by itself", node.op, model.name);
            findings.push(Finding::error(&node.at, message));
        }
    }
    for table in model.ropes.iter().filter(|table| table.long.is_some() || table.dynamic.is_some())
    {
        findings.push(Finding::unplaced(format!(
            "the rotary table `{}` is chosen by the length of a sequence, which given positions do not say",
            table.name
        )));
    }
    findings
}
