//! Masks of sequences besides causality: a bidirectional prefix, and packed documents.
//!
//! They come with the tokens, not with the weights ([decision 87](../../docs/decisions/0087-masks-are-inputs-of-a-run.md)).

use std::collections::BTreeSet;

use registry::diag::Finding;
use registry::model::Model;
use registry::ops::Trait;
use registry::scalar::Scalar;

use crate::Error;

/// Mask of a sequence besides causality, as far as one chunk brings it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkMask<'a> {
    /// Number of tokens at the start of the sequence that see each other. The chunk that begins the sequence
    /// gives it and contains all of them. 0 for none.
    pub prefix: usize,
    /// Indices of the chunk's tokens that begin a document, ascending. Such a token has position 0, and sees
    /// no token before it. Tokens before the first index continue the document of the slot.
    pub documents: &'a [usize],
}

impl ChunkMask<'_> {
    /// True if attention is causal, and no document begins in the chunk.
    pub fn is_causal(&self) -> bool {
        self.prefix <= 1 && self.documents.is_empty()
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
}

/// Mask of the sequence in a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SequenceMask {
    /// Number of tokens at the start that see each other.
    prefix: usize,
    /// Positions of the slot at which documents begin, ascending and above 0.
    documents: Vec<usize>,
}

impl SequenceMask {
    /// Creates the mask of a sequence whose current document began at a position of the slot.
    pub fn in_document(document: usize) -> Self {
        let documents = if document > 0 { vec![document] } else { Vec::new() };
        Self { prefix: 0, documents }
    }

    /// Restores a mask. Returns an error if the numbers are not those of a sequence of `length` tokens.
    pub fn restored(prefix: usize, documents: Vec<usize>, length: usize) -> Option<Self> {
        let ascends = documents.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = documents.iter().all(|start| (1..length).contains(start));
        let one = prefix == 0 || documents.is_empty();
        (prefix <= length && ascends && inside && one).then_some(Self { prefix, documents })
    }

    /// Returns the number of tokens at the start that see each other.
    pub fn prefix(&self) -> usize {
        self.prefix
    }

    /// Returns the positions of the slot at which documents begin, without 0.
    pub fn documents(&self) -> &[usize] {
        &self.documents
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
        if length == 0 {
            self.prefix = 0;
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
        Ok(())
    }
}

/// Returns the reasons that a model cannot be fed with a bidirectional prefix.
pub fn refuse_prefix(model: &Model) -> Vec<Finding> {
    if model.graph.fed.is_some() {
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
            let chunk = ChunkMask { prefix: *prefix, documents };
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
        assert_eq!(SequenceMask::restored(2, vec![], 1), None);
        assert_eq!(SequenceMask::restored(0, vec![2, 2], 9), None);
        assert_eq!(SequenceMask::restored(0, vec![0], 9), None);
        assert_eq!(SequenceMask::restored(0, vec![9], 9), None);
        assert_eq!(SequenceMask::restored(1, vec![2], 9), None);
        assert!(SequenceMask::restored(9, vec![], 9).is_some());
    }
}
