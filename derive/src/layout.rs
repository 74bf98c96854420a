//! Axes of torch tensors: which are rows of a batch, which are axes of a row.

use crate::graph::Dim;

/// Meaning of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axis {
    /// Sequences.
    Batch,
    /// Tokens of a sequence.
    Tokens,
    /// Tokens that a cache holds.
    Keys,
    /// Rows that chose an expert, and their count.
    Chosen(usize),
    /// Choices of all rows in the order of the experts, and their count.
    Sorted(usize),
    /// An axis of size 1 that a row does not have.
    One,
    /// An axis of the row.
    Row(usize),
    /// Several axes in one.
    Merged(Vec<Self>),
}

/// Sizes that axes which are not of a row have.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Tokens that a cache holds.
    pub keys: usize,
}

impl Axis {
    /// Returns the size of the axis.
    pub fn size(&self, row: &[Dim], sizes: Sizes) -> usize {
        match self {
            Self::Batch => sizes.batch,
            Self::Tokens => sizes.tokens,
            Self::Keys => sizes.keys,
            Self::Chosen(count) | Self::Sorted(count) => *count,
            Self::One => 1,
            Self::Row(number) => row.get(*number).map_or(1, |dim| dim.size),
            Self::Merged(axes) => axes.iter().map(|axis| axis.size(row, sizes)).product(),
        }
    }

    /// Is true if no axis of a row is in it.
    pub fn is_outer(&self) -> bool {
        match self {
            Self::Row(_) | Self::Sorted(_) => false,
            Self::Merged(axes) => axes.iter().all(Self::is_outer),
            _ => true,
        }
    }
}

/// Groups of old and new axes that hold the same numbers; sizes of 1 join the group that is open.
pub fn groups(old: &[usize], new: &[usize]) -> Option<Vec<(Vec<usize>, Vec<usize>)>> {
    let mut result = Vec::new();
    let mut left = 0;
    let mut right = 0;
    while left < old.len() || right < new.len() {
        let mut olds = Vec::new();
        let mut news = Vec::new();
        if left < old.len() && right < new.len() && old[left] == new[right] {
            result.push((vec![left], vec![right]));
            left += 1;
            right += 1;
            continue;
        }
        if left < old.len() && old[left] == 1 {
            result.push((vec![left], Vec::new()));
            left += 1;
            continue;
        }
        if right < new.len() && new[right] == 1 {
            result.push((Vec::new(), vec![right]));
            right += 1;
            continue;
        }
        let mut old_product = 1;
        let mut new_product = 1;
        loop {
            if old_product < new_product || olds.is_empty() {
                old_product *= old.get(left)?;
                olds.push(left);
                left += 1;
            } else if new_product < old_product || news.is_empty() {
                new_product *= new.get(right)?;
                news.push(right);
                right += 1;
            } else {
                break;
            }
        }
        result.push((olds, news));
    }
    Some(result)
}
