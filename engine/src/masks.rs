//! Masks of sequences besides causality: a bidirectional prefix, and packed documents.
//!
//! They come with the tokens, not with the weights ([decision 87](../../docs/decisions/0087-masks-are-inputs-of-a-run.md)).

use std::collections::BTreeSet;

use registry::diag::Finding;
use registry::model::Model;
use registry::ops::Trait;
use registry::scalar::Scalar;

use crate::{ChunkGiven, Error};

/// Mask of a sequence besides causality, as far as one chunk brings it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkMask<'a> {
    /// Number of tokens at the start of the sequence that see each other. The chunk that begins the sequence
    /// gives it and contains all of them. 0 for none.
    pub prefix: usize,
    /// Indices of the chunk's tokens that begin a document, ascending. Such a token has position 0, and sees
    /// no token before it. Tokens before the first index continue the document of the slot.
    pub documents: &'a [usize],
    /// Ranges of the chunk's tokens, ascending, whose tokens see each other: those of an image.
    pub spans: &'a [(usize, usize)],
}

impl ChunkMask<'_> {
    /// True if attention is causal, and no document begins in the chunk.
    pub fn is_causal(&self) -> bool {
        self.prefix <= 1 && self.documents.is_empty() && self.spans.is_empty()
    }
}

/// Inputs of a step besides the tokens of its chunks.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtraInputs<'a> {
    /// One row for every token of all chunks, for a graph that reads rows besides tokens (a `nextn` head).
    /// Empty for any other graph.
    pub hidden: &'a [f32],
    /// A mask for each chunk; empty if all of them are causal.
    pub masks: &'a [ChunkMask<'a>],
    /// Rows and positions for each chunk; empty if all are text.
    pub given: &'a [ChunkGiven<'a>],
}

/// Mask of the sequence in a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SequenceMask {
    /// Number of tokens at the start that see each other.
    prefix: usize,
    /// Positions of the slot at which documents begin, ascending and above 0.
    documents: Vec<usize>,
    /// Ranges of positions whose tokens see each other, ascending.
    spans: Vec<(usize, usize)>,
    /// True if tokens have positions of their own.
    placed: bool,
}

impl SequenceMask {
    /// Creates the mask of a sequence whose current document began at a position of the slot.
    pub fn in_document(document: usize) -> Self {
        let documents = if document > 0 { vec![document] } else { Vec::new() };
        Self { documents, ..Self::default() }
    }

    /// Restores a mask. Returns an error if the numbers are not those of a sequence of `length` tokens.
    pub fn restored(
        prefix: usize,
        documents: Vec<usize>,
        spans: Vec<(usize, usize)>,
        placed: bool,
        length: usize,
    ) -> Option<Self> {
        let ascends = documents.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = documents.iter().all(|start| (1..length).contains(start));
        let one = prefix == 0 || documents.is_empty();
        let known = prefix <= length && ascends && inside && one && are_spans(&spans, length);
        known.then_some(Self { prefix, documents, spans, placed })
    }

    /// Returns the number of tokens at the start that see each other.
    pub fn prefix(&self) -> usize {
        self.prefix
    }

    /// Returns the positions of the slot at which documents begin, without 0.
    pub fn documents(&self) -> &[usize] {
        &self.documents
    }

    /// Returns the ranges of positions whose tokens see each other.
    pub fn spans(&self) -> &[(usize, usize)] {
        &self.spans
    }

    /// Returns the range of tokens that see each other and one at a position.
    pub fn span_of(&self, position: usize) -> Option<(usize, usize)> {
        let next = self.spans.partition_point(|(_, end)| *end <= position);
        self.spans.get(next).copied().filter(|(start, _)| *start <= position)
    }

    /// True if tokens of the sequence have positions of their own.
    pub fn is_placed(&self) -> bool {
        self.placed
    }

    /// Notes that tokens of the sequence have positions of their own.
    pub(crate) fn place(&mut self) {
        self.placed = true;
    }

    /// Returns the position of the slot at which the document of a position begins.
    pub fn document_of(&self, position: usize) -> usize {
        let before = self.documents.partition_point(|start| *start <= position);
        before.checked_sub(1).map_or(0, |last| self.documents[last])
    }

    /// Returns one past the last position that a token sees.
    pub fn sees_until(&self, position: usize) -> usize {
        if position < self.prefix { self.prefix } else { position + 1 }
    }

    /// Forgets what lies at `length` and after it.
    pub fn truncate(&mut self, length: usize) {
        self.documents.retain(|start| *start < length);
        self.spans.retain(|(start, _)| *start < length);
        if length == 0 {
            *self = Self::default();
        }
    }

    /// Adds the mask of a chunk of `count` tokens, fed at position `start` of a slot.
    pub fn add(
        &mut self,
        slot: usize,
        start: usize,
        count: usize,
        chunk: &ChunkMask<'_>,
    ) -> Result<(), Error> {
        if chunk.prefix > 0 {
            let prefix = chunk.prefix;
            if start > 0 {
                let reason = format!(
                    "a prefix of {prefix} is given at position {start}; expected with the first chunk of the sequence"
                );
                return Err(Error::Mask { slot, reason });
            }
            if prefix > count {
                let reason = format!(
                    "a bidirectional prefix of {prefix} tokens is fed in a chunk of {count}; feed all of it in one chunk"
                );
                return Err(Error::Mask { slot, reason });
            }
            self.prefix = prefix;
        }
        if !are_spans(chunk.spans, count) {
            let reason = format!(
                "tokens of the ranges {:?} of a chunk of {count} are to see each other; expected ascending ranges that \
                 end at {count}: feed all tokens that see each other in one chunk",
                chunk.spans
            );
            return Err(Error::Mask { slot, reason });
        }
        self.spans.extend(chunk.spans.iter().map(|(from, to)| (start + from, start + to)));
        let mut last = None;
        for &index in chunk.documents {
            if index >= count || last.is_some_and(|last| index <= last) {
                let reason = format!(
                    "documents begin at {:?} of a chunk of {count} tokens; expected ascending indices below {count}",
                    chunk.documents
                );
                return Err(Error::Mask { slot, reason });
            }
            last = Some(index);
            if start + index > 0 {
                self.documents.push(start + index);
            }
        }
        if self.prefix > 0 && !self.documents.is_empty() {
            let reason = format!(
                "a prefix of {} and a document that begins at position {} are in one sequence; feed the documents \
                 to slots of their own",
                self.prefix, self.documents[0]
            );
            return Err(Error::Mask { slot, reason });
        }
        // The windows of an image lie inside of it.
        let outside = self.prefix > 0 && self.spans.iter().any(|(_, end)| *end > self.prefix);
        if !self.spans.is_empty() && (outside || !self.documents.is_empty()) {
            let reason =
                "tokens that see each other are in one sequence with a prefix that ends before them, or with several \
                 documents; no reference has both"
                    .to_owned();
            return Err(Error::Mask { slot, reason });
        }
        Ok(())
    }
}

/// True for ascending ranges that are not empty and end at `length` at most.
fn are_spans(spans: &[(usize, usize)], length: usize) -> bool {
    spans.windows(2).all(|pair| pair[0].1 <= pair[1].0)
        && spans.iter().all(|(start, end)| start < end && *end <= length)
}

/// Returns the reasons that a model cannot be fed with a bidirectional prefix.
pub fn refuse_prefix(model: &Model) -> Vec<Finding> {
    if model.graph.fed.is_some() && model.graph.encoder.is_none() {
        return vec![Finding::unplaced(
            "a head that reads hidden rows has no bidirectional prefix: no reference runs one",
        )];
    }
    let prefix = Some(&Scalar::Str("prefix".to_owned()));
    if model.graph.nodes.iter().any(|node| node.argument("mask") == prefix) {
        return Vec::new();
    }
    vec![
        Finding::unplaced(format!(
            "no attention of `{}` has a bidirectional prefix: every `mask` is `causal`",
            model.name
        ))
        .help("write `mask='prefix'` in the spec if the reference has one"),
    ]
}

/// Returns the reasons that a model cannot be fed with spans of tokens that see each other.
pub fn refuse_spans(model: &Model) -> Vec<Finding> {
    let masks = ["spans", "within"].map(|word| Scalar::Str(word.to_owned()));
    let spans = |mask: &Scalar| masks.contains(mask);
    if model.graph.nodes.iter().any(|node| node.argument("mask").is_some_and(spans)) {
        return Vec::new();
    }
    vec![
        Finding::unplaced(format!(
            "no attention of `{}` lets the tokens of an image see each other: no `mask` is `spans`",
            model.name
        ))
        .help("write `mask='spans'` in the spec if the reference has them"),
    ]
}

/// Returns the reasons that a model cannot be fed with several documents in one sequence, one for each op or
/// table.
pub fn refuse_documents(model: &Model) -> Vec<Finding> {
    let graph = &model.graph;
    let mut findings: Vec<Finding> = Vec::new();
    if graph.fed.is_some() {
        findings.push(Finding::unplaced(
            "a head that reads hidden rows does not keep packed documents apart",
        ));
    }
    for node in &graph.nodes {
        if node.state.is_some() && !node.op.is(Trait::SeparatesDocuments) {
            findings.push(Finding::error(
                &node.at,
                format!(
                    "op `{}` of `{}` does not keep packed documents apart: its state goes on from one to the next",
                    node.op, model.name
                ),
            ));
        }
        let keyed = [("alibi", "alibi"), ("keep", "salience")];
        for (argument, name) in keyed {
            if node.state.is_some() && node.argument(argument).is_some() {
                findings.push(Finding::error(
                    &node.at,
                    format!(
                        "op `{}` with `{name}` counts positions over all packed documents",
                        node.op
                    ),
                ));
            }
        }
        let table = node.rope.and_then(|id| model.ropes.get(id.0));
        if let Some(table) = table.filter(|t| t.long.is_some() || t.dynamic.is_some()) {
            findings.push(Finding::error(
                &node.at,
                format!(
                    "the rotary table `{}` is chosen by the length of a sequence, which packed documents do not share",
                    table.name
                ),
            ));
        }
    }
    let mut messages = BTreeSet::new();
    findings.retain(|finding| messages.insert(finding.message.clone()));
    findings
        .into_iter()
        .map(|finding| finding.help("feed each document to a slot of its own"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(masks: &[(usize, &[usize])]) -> Result<SequenceMask, String> {
        let mut mask = SequenceMask::default();
        let mut start = 0;
        for (prefix, documents) in masks {
            let chunk = ChunkMask { prefix: *prefix, documents, spans: &[] };
            mask.add(7, start, 5, &chunk).map_err(|error| error.to_string())?;
            start += 5;
        }
        Ok(mask)
    }

    #[test]
    fn documents_of_chunks_follow_each_other() {
        let mask = added(&[(0, &[0, 3]), (0, &[]), (0, &[0, 4])]).unwrap();
        assert_eq!(mask.documents(), [3, 10, 14]);
        let starts: Vec<usize> = [0, 2, 3, 9, 10, 13, 14, 20].map(|p| mask.document_of(p)).into();
        assert_eq!(starts, [0, 0, 3, 3, 10, 10, 14, 14]);
        let mut cut = mask;
        cut.truncate(10);
        assert_eq!(cut.documents(), [3]);
        assert_eq!(SequenceMask::in_document(3), cut);
    }

    #[test]
    fn a_prefix_sees_itself_and_the_rest_sees_what_came_before() {
        let mask = added(&[(3, &[])]).unwrap();
        assert_eq!([0, 2, 3, 4].map(|p| mask.sees_until(p)), [3, 3, 4, 5]);
        let mut cut = mask;
        cut.truncate(4);
        assert_eq!(cut.prefix(), 3);
        cut.truncate(0);
        assert_eq!(cut, SequenceMask::default());
    }

    #[test]
    fn spans_of_chunks_are_counted_from_the_start_of_the_slot() {
        let mut mask = SequenceMask::default();
        for (start, spans) in [(0, &[(1, 3)][..]), (5, &[]), (10, &[(0, 2), (2, 5)])] {
            mask.add(7, start, 5, &ChunkMask { spans, ..ChunkMask::default() }).unwrap();
        }
        assert_eq!(mask.spans(), [(1, 3), (10, 12), (12, 15)]);
        let ends = [0, 1, 2, 3, 9, 10, 12, 15].map(|p| mask.span_of(p).map(|(_, end)| end));
        assert_eq!(ends, [None, Some(3), Some(3), None, None, Some(12), Some(15), None]);
        mask.truncate(12);
        assert_eq!(mask.spans(), [(1, 3), (10, 12)]);
        for spans in [&[(3, 6)][..], &[(2, 2)], &[(1, 3), (2, 4)]] {
            let error = mask.add(7, 12, 5, &ChunkMask { spans, ..ChunkMask::default() });
            let error = error.unwrap_err().to_string();
            assert!(error.contains("feed all tokens that see each other in one chunk"), "{error}");
        }
        let documents = ChunkMask { documents: &[1], ..ChunkMask::default() };
        let error = mask.add(7, 12, 5, &documents).unwrap_err().to_string();
        assert!(error.contains("no reference has both"), "{error}");
    }

    #[test]
    fn masks_that_no_sequence_has_are_refused() {
        for (masks, want) in [
            (&[(6, &[][..])][..], "feed all of it in one chunk"),
            (&[(0, &[]), (2, &[])], "a prefix of 2 is given at position 5"),
            (&[(0, &[2, 2])], "expected ascending indices below 5"),
            (&[(0, &[5])], "expected ascending indices below 5"),
            (&[(2, &[3])], "feed the documents to slots of their own"),
            (&[(2, &[]), (0, &[0])], "a document that begins at position 5"),
        ] {
            let error = added(masks).unwrap_err();
            assert!(error.starts_with("slot 7: ") && error.contains(want), "{error}");
        }
        let restored = |prefix, documents: &[usize], spans: &[(usize, usize)], length| {
            SequenceMask::restored(prefix, documents.to_vec(), spans.to_vec(), false, length)
        };
        for (prefix, documents, spans, length) in [
            (2, &[][..], &[][..], 1),
            (0, &[2, 2], &[], 9),
            (0, &[0], &[], 9),
            (0, &[9], &[], 9),
            (1, &[2], &[], 9),
            (0, &[], &[(3, 3)], 9),
            (0, &[], &[(3, 5), (4, 6)], 9),
            (0, &[], &[(3, 10)], 9),
        ] {
            assert_eq!(restored(prefix, documents, spans, length), None);
        }
        assert!(restored(9, &[], &[], 9).is_some());
        assert!(restored(0, &[], &[(0, 2), (2, 9)], 9).is_some());
    }
}
