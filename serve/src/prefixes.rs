//! Finished slots, kept for prompts that begin like them.

use std::sync::Arc;

use engine::{Session, SlotId};

/// Shortest beginning that is worth a copy of a slot.
const SHORTEST: usize = 8;

/// A slot with the tokens that it has seen.
#[derive(Debug)]
struct KeptSlot {
    slot: SlotId,
    tokens: Vec<u32>,
    salt: Arc<str>,
}

/// Bounded list of finished slots, the most recently used last.
#[derive(Debug)]
pub(crate) struct PrefixStore {
    slots: Vec<KeptSlot>,
    limit: usize,
    /// Distance from the end of a slot at which truncation failed. A window or a recurrence forgets, so
    /// longer distances fail too.
    forgets: Option<usize>,
}

impl PrefixStore {
    pub(crate) fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), limit, forgets: None }
    }

    /// Returns the number of kept slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of positions in all kept slots.
    pub(crate) fn positions(&self) -> usize {
        self.slots.iter().map(|kept_slot| kept_slot.tokens.len()).sum()
    }

    /// Returns the number of tokens of a kept slot that a prompt with this beginning can use.
    fn usable_length(&self, kept_slot: &KeptSlot, beginning: &[u32], salt: &str) -> Option<usize> {
        let same = kept_slot.tokens.iter().zip(beginning).take_while(|(a, b)| a == b).count();
        let back = kept_slot.tokens.len() - same;
        let known = back == 0 || self.forgets.is_none_or(|distance| back < distance);
        (known && *kept_slot.salt == *salt && same >= SHORTEST).then_some(same)
    }

    /// Opens a slot with the longest known beginning of a prompt. Returns the slot and its length; the
    /// last token of the prompt is never part of it, because its row is wanted.
    pub(crate) fn open(
        &mut self,
        session: &mut dyn Session,
        prompt: &[u32],
        salt: &str,
    ) -> Option<(SlotId, usize)> {
        let (_, beginning) = prompt.split_last()?;
        let slots = self.slots.iter().enumerate();
        let usable = slots.filter_map(|(n, kept_slot)| {
            Some((self.usable_length(kept_slot, beginning, salt)?, n))
        });
        let (same, at) = usable.max()?;
        let kept_slot = self.slots.remove(at);
        if kept_slot.tokens.len() == same {
            return Some((kept_slot.slot, same));
        }
        let forked = session.fork(kept_slot.slot).ok();
        let back = kept_slot.tokens.len() - same;
        self.slots.push(kept_slot);
        let slot = forked?;
        if session.truncate(slot, same).is_ok() {
            return Some((slot, same));
        }
        self.forgets = Some(self.forgets.map_or(back, |distance| distance.min(back)));
        session.release(slot).ok();
        None
    }

    /// Keeps a finished slot. Shorter ones with the same beginning are released.
    pub(crate) fn keep(
        &mut self,
        session: &mut dyn Session,
        slot: SlotId,
        tokens: Vec<u32>,
        salt: Arc<str>,
    ) {
        if self.limit == 0 || tokens.len() < SHORTEST {
            session.release(slot).ok();
            return;
        }
        let (covered, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.slots)
            .into_iter()
            .partition(|kept_slot| kept_slot.salt == salt && tokens.starts_with(&kept_slot.tokens));
        self.slots = left;
        for kept_slot in covered {
            session.release(kept_slot.slot).ok();
        }
        self.slots.push(KeptSlot { slot, tokens, salt });
        while self.slots.len() > self.limit {
            self.evict(session);
        }
    }

    /// Releases the least recently used slot; false if there is none.
    pub(crate) fn evict(&mut self, session: &mut dyn Session) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        session.release(self.slots.remove(0).slot).ok();
        true
    }
}
