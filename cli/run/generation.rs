//! Generates tokens one by one.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use engine::sample::Sampler;
use engine::{Chunk, NoProbe, OutputRows, Session, SlotId};

/// Bounds of a generation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    /// Number of tokens that were asked for.
    pub(super) asked: usize,
    /// Number of tokens that the model has room for.
    pub(super) room: usize,
    /// Tokens that end a text.
    pub(super) ends: &'a [u32],
    /// True once the user has stopped the generation.
    pub(super) stop: Option<&'a AtomicBool>,
}

/// Reason that a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GenerationEnd {
    Length,
    Context,
    EndToken,
    Stopped,
}

impl GenerationEnd {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Context => "context",
            Self::EndToken => "end token",
            Self::Stopped => "stopped",
        }
    }
}

/// Generated tokens, without the one that ended them.
#[derive(Debug)]
pub(super) struct GeneratedTokens {
    pub(super) tokens: Vec<u32>,
    pub(super) ended: GenerationEnd,
}

/// Feeds `prompt` to a slot and generates tokens, each of which is passed to `pass`.
///
/// The slot then holds the prompt and all generated tokens but the last one, which is fed with the next prompt.
pub(super) fn generate(
    session: &mut dyn Session,
    slot: SlotId,
    prompt: &[u32],
    sampler: &mut Sampler,
    limits: Limits<'_>,
    mut pass: impl FnMut(u32) -> Result<()>,
) -> Result<GeneratedTokens> {
    let limit = limits.asked.min(limits.room);
    if limit == 0 {
        // No tokens to add, but the prompt is still checked: ids in range, within the context.
        session.step(&[Chunk { slot, tokens: prompt, rows: OutputRows::None }], &mut NoProbe)?;
    }
    let full =
        if limits.room < limits.asked { GenerationEnd::Context } else { GenerationEnd::Length };
    let mut tokens = Vec::new();
    let mut next = prompt.to_vec();
    while tokens.len() < limit {
        let chunk = Chunk { slot, tokens: &next, rows: OutputRows::Last };
        let logits = session.step(&[chunk], &mut NoProbe)?;
        if limits.stop.is_some_and(|stop| stop.load(Ordering::SeqCst)) {
            return Ok(GeneratedTokens { tokens, ended: GenerationEnd::Stopped });
        }
        let token = sampler.choose(logits[0].row(0));
        if limits.ends.contains(&token) {
            return Ok(GeneratedTokens { tokens, ended: GenerationEnd::EndToken });
        }
        pass(token)?;
        tokens.push(token);
        next = vec![token];
    }
    Ok(GeneratedTokens { tokens, ended: full })
}
