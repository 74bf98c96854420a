//! Continuous batches: the thread that owns the session.
//!
//! Every step has one token of each sequence that generates, and a bounded number of prompt tokens. So a
//! long prompt delays others by one chunk at most. Sequences join and leave between steps.
//!
//! A sequence is admitted only if all of its positions fit ([decision 83](../../docs/decisions/0083-serve-on-one-thread.md)).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use chat::{ConstraintError, OutputConstraint};
use engine::sample::Sampler;
use engine::{Chunk, Error, Logits, NoProbe, OutputRows, Session, SlotId};
use tokio::sync::mpsc::error::TrySendError;

use crate::error::ApiError;
use crate::logprobs::TokenScore;
use crate::metrics::Metrics;
use crate::penalties::PenaltyState;
use crate::prefixes::PrefixStore;
use crate::queue::SequenceQueue;
use crate::rules;
use crate::sequence::{EndReason, SequenceEvent, SequenceRequest};

/// Longest wait for work, after which cancelled sequences are looked for.
const IDLE: Duration = Duration::from_millis(500);
/// Wait for clients, if none has read what was generated for it.
const STALLED: Duration = Duration::from_millis(2);
/// Most logits of one step for scores of prompts.
const SCORED_LOGITS: usize = 16 << 20;

/// Limits of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchedulerLimits {
    pub(crate) slots: usize,
    pub(crate) prefill_chunk: usize,
    /// Most positions of all slots, running and kept.
    pub(crate) positions: usize,
    pub(crate) kept: usize,
}

/// A sequence in a slot.
struct RunningSequence {
    request: SequenceRequest,
    /// The slot, until the sequence ends.
    slot: Option<SlotId>,
    /// The prompt and the added tokens.
    tokens: Vec<u32>,
    /// Number of tokens that the slot has seen.
    fed: usize,
    sampler: Sampler,
    penalties: Option<PenaltyState>,
    /// Progress under the rule of the output, if it has one.
    constraint: Option<OutputConstraint>,
    scores: Vec<TokenScore>,
    /// Events that the client has no room for yet.
    pending: VecDeque<SequenceEvent>,
}

impl RunningSequence {
    fn made(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// True if the sequence can take part in a step.
    fn is_ready(&self) -> bool {
        self.slot.is_some() && self.pending.is_empty()
    }

    /// Hands events to the request as long as it has room for them.
    fn flush(&mut self) {
        while let Some(event) = self.pending.pop_front() {
            match self.request.events.try_send((self.request.index, event)) {
                Ok(()) => {}
                Err(TrySendError::Full((_, event))) => {
                    self.pending.push_front(event);
                    return;
                }
                Err(TrySendError::Closed(_)) => self.pending.clear(),
            }
        }
    }

    /// Takes in the results of a step that fed `count` tokens. Returns true at the end.
    fn advance(&mut self, count: usize, logits: &Logits, metrics: &Metrics) -> bool {
        let start = self.fed;
        let prompt = self.request.prompt.len();
        self.fed += count;
        if let Some(top) = self.request.prompt_top {
            for row in 0..logits.rows {
                let position = start + row + 1;
                if position < prompt {
                    let id = self.tokens[position];
                    self.scores.push(TokenScore::of(logits.row(row), id, top));
                }
            }
        }
        if self.fed < self.tokens.len() {
            return false;
        }
        if self.made() == 0 {
            metrics.first_token.observe(self.request.queued.elapsed());
            if self.request.prompt_top.is_some() {
                self.pending.push_back(SequenceEvent::Prompt(std::mem::take(&mut self.scores)));
            }
            if self.request.most == 0 {
                self.pending.push_back(SequenceEvent::End(EndReason::Length));
                return true;
            }
        }
        let Some(last) = logits.rows.checked_sub(1) else { return false };
        let row = logits.row(last);
        let id = match self.choose(row) {
            Ok(Some(id)) => id,
            Ok(None) => {
                self.pending.push_back(SequenceEvent::End(EndReason::Stop));
                return true;
            }
            Err(error) => return self.fail(&error),
        };
        let score = self.request.top.map(|top| TokenScore::of(row, id, top));
        self.tokens.push(id);
        metrics.generated_tokens.add(1);
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(id);
        }
        let ended = self.request.ends.contains(&id);
        if let (false, Some(constraint)) = (ended, &mut self.constraint)
            && let Err(error) = constraint.accept(id)
        {
            self.pending.push_back(SequenceEvent::Token { id, score, end: None });
            return self.fail(&error);
        }
        let complete = self.constraint.as_ref().is_some_and(OutputConstraint::is_complete);
        let end = if ended || complete {
            Some(EndReason::Stop)
        } else {
            (self.made() >= self.request.most).then_some(EndReason::Length)
        };
        self.pending.push_back(SequenceEvent::Token { id, score, end });
        end.is_some()
    }

    /// Returns the tokens that the slot has seen, and the salt, for the store of prefixes.
    fn leave(&mut self) -> (Vec<u32>, Arc<str>) {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.truncate(self.fed);
        (tokens, Arc::clone(&self.request.salt))
    }

    /// Ends the sequence with the error of its rule.
    fn fail(&mut self, error: &ConstraintError) -> bool {
        self.pending.push_back(SequenceEvent::Failed(rules::stuck(error)));
        true
    }

    /// Chooses the next token; none if the rule of the output allows no other one.
    fn choose(&mut self, row: &[f32]) -> Result<Option<u32>, ConstraintError> {
        let plain = self.request.bias.is_empty() && self.penalties.is_none();
        if plain && self.constraint.is_none() {
            return Ok(Some(self.sampler.choose(row)));
        }
        let mut row = row.to_vec();
        for (id, bias) in &*self.request.bias {
            if let Some(logit) = row.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(&mut row);
        }
        let Some(constraint) = &mut self.constraint else {
            return Ok(Some(self.sampler.choose(&row)));
        };
        constraint.restrict(&mut row, &self.request.ends);
        if row.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            return if constraint.accepts_end() { Ok(None) } else { Err(ConstraintError::NoToken) };
        }
        Ok(Some(self.sampler.choose(&row)))
    }
}

/// Part of a step: a sequence, the number of its tokens, and the rows that are wanted.
struct StepPart {
    at: usize,
    count: usize,
    rows: OutputRows,
}

/// Computes the sequences of a queue with one session.
pub(crate) struct Scheduler {
    session: Box<dyn Session>,
    queue: Arc<SequenceQueue>,
    metrics: Arc<Metrics>,
    limits: SchedulerLimits,
    kept: PrefixStore,
    running: Vec<RunningSequence>,
    /// Set to end at once.
    abort: Arc<AtomicBool>,
}

impl Scheduler {
    pub(crate) fn new(
        session: Box<dyn Session>,
        queue: Arc<SequenceQueue>,
        metrics: Arc<Metrics>,
        limits: SchedulerLimits,
        abort: Arc<AtomicBool>,
    ) -> Self {
        let prefixes = PrefixStore::new(limits.kept);
        Self { session, queue, metrics, limits, kept: prefixes, running: Vec::new(), abort }
    }

    /// Works until the queue is closed and every sequence has ended.
    pub(crate) fn run(mut self) {
        loop {
            if self.abort.load(Ordering::Relaxed) {
                self.queue.abort();
                return;
            }
            self.sweep();
            self.admit();
            self.report();
            if self.running.is_empty() {
                if !self.queue.wait(IDLE) {
                    return;
                }
            } else if !self.step() {
                std::thread::sleep(STALLED);
            }
        }
    }

    /// Removes sequences that ended, were cancelled or are too late.
    fn sweep(&mut self) {
        let now = Instant::now();
        let over =
            self.queue.take_over(|request| request.is_cancelled() || request.deadline <= now);
        for request in over {
            if request.events.is_closed() {
                self.metrics.cancelled.add(1);
            } else if !request.cancel.is_set() {
                let failed = SequenceEvent::Failed(ApiError::too_late());
                request.events.try_send((request.index, failed)).ok();
            }
        }
        for sequence in &mut self.running {
            sequence.flush();
            let Some(slot) = sequence.slot else { continue };
            let request = &sequence.request;
            if request.events.is_closed() {
                self.metrics.cancelled.add(1);
                sequence.pending.clear();
            } else if request.cancel.is_set() {
                // A stop text ended the sequence: a later prompt may go on from here.
                sequence.pending.clear();
                sequence.slot = None;
                let (tokens, salt) = sequence.leave();
                self.kept.keep(&mut *self.session, slot, tokens, salt);
                continue;
            } else if request.deadline <= now {
                sequence.pending.push_back(SequenceEvent::Failed(ApiError::too_late()));
                sequence.flush();
            } else {
                continue;
            }
            sequence.slot = None;
            self.session.release(slot).ok();
        }
        // A client that reads nothing holds no slot, and its events until it goes or is too late.
        self.running.retain(|sequence| {
            let waits = !sequence.pending.is_empty() && !sequence.request.is_cancelled();
            sequence.slot.is_some() || (waits && sequence.request.deadline > now)
        });
    }

    /// Returns the numbers of running sequences and of their positions.
    fn in_use(&self) -> (usize, usize) {
        let running = self.running.iter().filter(|sequence| sequence.slot.is_some());
        running.fold((0, 0), |(slots, positions), sequence| {
            (slots + 1, positions + sequence.request.positions())
        })
    }

    /// Gives slots to waiting sequences, in the order of their arrival.
    fn admit(&mut self) {
        loop {
            let (slots, positions) = self.in_use();
            let SchedulerLimits { slots: limit, positions: room, .. } = self.limits;
            let next = self.queue.take(|request| {
                slots < limit && positions.saturating_add(request.positions()) <= room
            });
            let Some(request) = next else { return };
            let needed = positions.saturating_add(request.positions());
            let reused = match request.prompt_top {
                // Scores need the rows of the whole prompt.
                Some(_) => None,
                None => self.kept.open(&mut *self.session, &request.prompt, &request.salt),
            };
            while needed.saturating_add(self.kept.positions()) > room {
                if !self.kept.evict(&mut *self.session) {
                    break;
                }
            }
            let (slot, fed) = reused.unwrap_or_else(|| (self.session.open_slot(), 0));
            self.metrics.queue_time.observe(request.queued.elapsed());
            self.metrics.reused_tokens.add(fed as u64);
            self.running.push(RunningSequence {
                slot: Some(slot),
                tokens: request.prompt.to_vec(),
                fed,
                sampler: Sampler::new(request.sampling.clone()),
                penalties: request
                    .penalties
                    .map(|penalties| PenaltyState::new(penalties, &request.prompt)),
                constraint: request.constraint.as_deref().cloned(),
                scores: Vec::new(),
                pending: VecDeque::new(),
                request,
            });
        }
    }

    fn report(&self) {
        let (slots, positions) = self.in_use();
        let metrics = &self.metrics;
        self.queue.set_free(self.limits.slots.saturating_sub(slots));
        metrics.running.set(slots as u64);
        metrics.reserved_positions.set(positions as u64);
        metrics.kept_slots.set(self.kept.len() as u64);
        metrics.kept_positions.set(self.kept.positions() as u64);
    }

    /// Chooses the tokens of the next step.
    fn plan(&self) -> Vec<StepPart> {
        let mut left = self.limits.prefill_chunk.max(1);
        let vocab = self.session.model().vocab.max(1);
        let mut scored = (SCORED_LOGITS / vocab).max(1);
        let mut parts = Vec::new();
        for (at, sequence) in self.running.iter().enumerate() {
            if !sequence.is_ready() {
                continue;
            }
            let remaining = sequence.tokens.len() - sequence.fed;
            if sequence.made() > 0 {
                parts.push(StepPart { at, count: remaining, rows: OutputRows::Last });
                continue;
            }
            let scores = sequence.request.prompt_top.is_some();
            let count = remaining.min(left).min(if scores { scored } else { remaining });
            if count == 0 {
                continue;
            }
            left -= count;
            let rows = match (scores, count == remaining) {
                (true, _) => {
                    scored -= count;
                    OutputRows::All
                }
                (false, true) => OutputRows::Last,
                (false, false) => OutputRows::None,
            };
            parts.push(StepPart { at, count, rows });
        }
        parts
    }

    /// Computes one step; false if no sequence could take part.
    fn step(&mut self) -> bool {
        let parts = self.plan();
        if parts.is_empty() {
            return false;
        }
        let begun = Instant::now();
        let chunks: Vec<Chunk<'_>> =
            parts.iter().filter_map(|part| part.chunk(&self.running)).collect();
        let results: Vec<Result<Logits, Error>> = match self.session.step(&chunks, &mut NoProbe) {
            Ok(logits) => logits.into_iter().map(Ok).collect(),
            Err(error) if chunks.len() == 1 => vec![Err(error)],
            // One sequence is at fault: each alone shows which.
            Err(_) => chunks.iter().map(|chunk| alone(&mut *self.session, *chunk)).collect(),
        };
        drop(chunks);
        self.metrics.steps.observe(begun.elapsed());
        for (part, result) in parts.iter().zip(results) {
            let sequence = &mut self.running[part.at];
            if sequence.made() == 0 {
                self.metrics.prompt_tokens.add(part.count as u64);
            }
            let ended = match result {
                Ok(logits) => sequence.advance(part.count, &logits, &self.metrics),
                Err(error) => {
                    sequence.pending.push_back(SequenceEvent::Failed(step_error(&error)));
                    if let Some(slot) = sequence.slot.take() {
                        self.session.release(slot).ok();
                    }
                    false
                }
            };
            sequence.flush();
            if ended && let Some(slot) = sequence.slot.take() {
                let (tokens, salt) = sequence.leave();
                self.kept.keep(&mut *self.session, slot, tokens, salt);
            }
        }
        true
    }
}

impl StepPart {
    fn chunk<'a>(&self, running: &'a [RunningSequence]) -> Option<Chunk<'a>> {
        let sequence = running.get(self.at)?;
        let tokens = &sequence.tokens[sequence.fed..sequence.fed + self.count];
        Some(Chunk { slot: sequence.slot?, tokens, rows: self.rows })
    }
}

fn alone(session: &mut dyn Session, chunk: Chunk<'_>) -> Result<Logits, Error> {
    let mut logits = session.step(&[chunk], &mut NoProbe)?;
    logits.pop().ok_or_else(|| Error::Other("the step has no result".to_owned()))
}

fn step_error(error: &Error) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the engine failed: {error}"))
}
