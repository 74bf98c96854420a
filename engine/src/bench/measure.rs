//! Times tests on a session, in turn with other programs.

use std::any::Any;
use std::ops::Range;
use std::time::Instant;

use super::error::BenchError;
use super::peers::BenchPeer;
use super::plan::{BenchSubject, BenchTest};
use super::table::{BenchRow, BenchSamples};
use crate::error::Error;
use crate::session::{Chunk, NoProbe, OutputRows, Session, SlotId};

/// Tokens of one step that fills a slot up to a depth.
const FILL: usize = 512;

/// Returns tokens of positions, spread over the vocabulary; the same in every run.
pub fn spread_tokens(vocab: usize, positions: Range<usize>) -> Vec<u32> {
    let vocab = vocab.max(1) as u64;
    positions.map(|position| (position as u64 * 2_654_435_761 % vocab) as u32).collect()
}

/// A session with a slot that is filled to a depth, which tests fork.
struct BenchSession<'a> {
    session: &'a mut dyn Session,
    filled: Option<(usize, SlotId)>,
}

impl<'a> BenchSession<'a> {
    /// Returns a session without a filled slot.
    fn new(session: &'a mut dyn Session) -> Self {
        Self { session, filled: None }
    }

    /// Opens a slot that holds `depth` tokens.
    fn slot(&mut self, depth: usize) -> Result<SlotId, Error> {
        if depth == 0 {
            return Ok(self.session.open_slot());
        }
        if let Some((filled, slot)) = self.filled {
            if filled == depth {
                return self.session.fork(slot);
            }
            self.session.release(slot)?;
            self.filled = None;
        }
        let slot = self.session.open_slot();
        let tokens = self.tokens(0, depth);
        for tokens in tokens.chunks(FILL) {
            self.step(&[slot], &[tokens], OutputRows::None)?;
        }
        self.filled = Some((depth, slot));
        self.session.fork(slot)
    }

    /// Returns `count` tokens from a position on.
    fn tokens(&self, from: usize, count: usize) -> Vec<u32> {
        spread_tokens(self.session.model().vocab, from..from + count)
    }

    fn step(&mut self, slots: &[SlotId], tokens: &[&[u32]], rows: OutputRows) -> Result<(), Error> {
        let chunks: Vec<Chunk<'_>> =
            slots.iter().zip(tokens).map(|(&slot, &tokens)| Chunk { slot, tokens, rows }).collect();
        self.session.step(&chunks, &mut NoProbe).map(drop)
    }

    /// Runs a test once and returns its tokens per second.
    fn run(&mut self, test: &BenchTest) -> Result<f64, Error> {
        let mut slots = Vec::new();
        for _ in 0..test.batch {
            slots.push(self.slot(test.depth)?);
        }
        let prompt = self.tokens(test.depth, test.prompt.max(1));
        let prompts = vec![&prompt[..]; test.batch];
        let mut begun = Instant::now();
        self.step(&slots, &prompts, OutputRows::Last)?;
        if test.prompt == 0 {
            begun = Instant::now();
        }
        for n in 0..test.generated {
            let next = self.tokens(test.depth + prompt.len() + n, test.batch);
            let next: Vec<&[u32]> = next.chunks(1).collect();
            self.step(&slots, &next, OutputRows::Last)?;
        }
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        for slot in slots {
            self.session.release(slot)?;
        }
        Ok(test.tokens() as f64 / seconds)
    }
}

/// Program that runs the same tests: its name, and the program or the reason why it does not run.
pub type NamedPeer = (String, Result<Box<dyn BenchPeer>, BenchError>);

/// Runs each test once to warm up and then `repetitions` times, each round in turn with the other programs.
///
/// `watch` takes the test and the number of the round, from 0; the end of the returned value ends the round.
pub fn measure(
    session: &mut dyn Session,
    tests: &[BenchTest],
    repetitions: usize,
    peers: &mut [NamedPeer],
    subject: &BenchSubject,
    watch: &dyn Fn(&BenchTest, usize) -> Box<dyn Any>,
) -> Result<Vec<BenchRow>, Error> {
    let mut session = BenchSession::new(session);
    let mut rows = Vec::new();
    for test in tests {
        let mut row = BenchRow {
            subject: subject.clone(),
            test: *test,
            rates: Vec::new(),
            peers: peers.iter().map(|(name, _)| BenchSamples::new(name)).collect(),
        };
        for round in 0..=repetitions {
            let _watched = watch(test, round);
            let rate = session.run(test)?;
            // The first round warms up.
            if round > 0 {
                row.rates.push(rate);
            }
            for ((_, peer), samples) in peers.iter_mut().zip(&mut row.peers) {
                samples.add(|| peer.as_mut().map_err(|why| why.clone())?.run(test), round > 0);
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
