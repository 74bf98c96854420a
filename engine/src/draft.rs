//! Drafts tokens with a `nextn` head and verifies them with the model, several in one step.
//!
//! The head reads pairs of a token and what the model made of the token before it. What the
//! model does not confirm is taken back with [`Session::truncate`], from the model's states and
//! from the head's, so the tokens are those of plain greedy decoding.

use registry::model::Nextn;

use crate::sample::greedy;
use crate::{Chunk, Error, ExtraInputs, Logits, NoProbe, OutputRows, Probe, Session, SlotId};

/// Counts of drafts made and confirmed, by the number of tokens they look ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Steps of the model that verified drafts.
    pub steps: u64,
    /// Drafts made; the first number counts those of the token after the next.
    pub drafted: Vec<u64>,
    /// Drafts that the model would have chosen, with all before them.
    pub accepted: Vec<u64>,
}

impl DraftCounts {
    /// Returns the number of all drafts.
    pub fn drafts(&self) -> u64 {
        self.drafted.iter().sum()
    }

    /// Returns the number of accepted drafts.
    pub fn hits(&self) -> u64 {
        self.accepted.iter().sum()
    }

    /// Returns the accepted share; none without drafts.
    pub fn rate(&self) -> Option<f64> {
        (self.drafts() > 0).then(|| self.hits() as f64 / self.drafts() as f64)
    }

    /// Returns the accepted share, by the number of tokens that drafts look ahead.
    pub fn by_position(&self) -> Vec<f64> {
        let pairs = self.accepted.iter().zip(&self.drafted);
        pairs.map(|(hits, drafts)| *hits as f64 / (*drafts).max(1) as f64).collect()
    }

    fn count(&mut self, drafted: usize, accepted: usize) {
        self.steps += 1;
        for (counts, upto) in [(&mut self.drafted, drafted), (&mut self.accepted, accepted)] {
            counts.resize(counts.len().max(drafted), 0);
            counts.iter_mut().take(upto).for_each(|count| *count += 1);
        }
    }
}

/// One sequence that is decoded greedily with drafts.
#[derive(Debug)]
pub struct Drafter {
    /// The model's slot.
    pub slot: SlotId,
    /// The head's slot.
    pub head: SlotId,
    /// Counts so far.
    pub tally: DraftCounts,
    nextn: Nextn,
    /// The newest token, which the model has not been fed.
    next: u32,
    /// Pairs that the head has not been fed: tokens, and a row of hidden numbers each.
    tokens: Vec<u32>,
    hidden: Vec<f32>,
}

impl Drafter {
    /// Feeds a prompt to a fresh slot of the model; gives the first token too.
    pub fn begin(
        model: &mut dyn Session,
        head: &mut dyn Session,
        prompt: &[u32],
    ) -> Result<(Self, u32), Error> {
        let Some(nextn) = model.model().nextn.clone() else {
            return Err(Error::Draft(format!("`{}` has no `nextn` head", model.model().name)));
        };
        if nextn.layers.len() > 1 {
            return Err(Error::Draft(format!(
                "the head has {} layers, one for each token it looks ahead; drafts are made with \
                 heads of one layer",
                nextn.layers.len()
            )));
        }
        let slot = model.open_slot();
        let mut rows = TapCopy::of(&nextn.from);
        let logits =
            model.step(&[Chunk { slot, tokens: prompt, rows: OutputRows::Last }], &mut rows)?;
        let next = greedy(single_chunk(logits)?.row(0));
        let tokens = prompt.iter().skip(1).copied().chain([next]).collect();
        let head = head.open_slot();
        let tally = DraftCounts::default();
        let hidden = rows.data;
        Ok((Self { slot, head, tally, nextn, next, tokens, hidden }, next))
    }

    /// Drafts `k` tokens, verifies them, and gives the tokens that follow: one more than were
    /// confirmed.
    pub fn advance(
        &mut self,
        model: &mut dyn Session,
        head: &mut dyn Session,
        k: usize,
    ) -> Result<Vec<u32>, Error> {
        let drafts = self.draft(head, k)?;
        let before = model.position(self.slot)?;
        let fed: Vec<u32> = [self.next].into_iter().chain(drafts.iter().copied()).collect();
        let mut rows = TapCopy::of(&self.nextn.from);
        let chunk = Chunk { slot: self.slot, tokens: &fed, rows: OutputRows::All };
        let logits = single_chunk(model.step(&[chunk], &mut rows)?)?;
        let chosen: Vec<u32> = (0..logits.rows).map(|row| greedy(logits.row(row))).collect();
        let accepted =
            drafts.iter().zip(&chosen).take_while(|(draft, choice)| draft == choice).count();
        model.truncate(self.slot, before + 1 + accepted)?;
        let confirmed = chosen[..=accepted].to_vec();
        self.tally.count(drafts.len(), accepted);
        let width = rows.data.len() / fed.len();
        rows.data.truncate(width * confirmed.len());
        self.hidden = rows.data;
        self.tokens.clone_from(&confirmed);
        self.next = confirmed.last().copied().unwrap_or(self.next);
        Ok(confirmed)
    }

    /// Feeds the pairs that the model has confirmed and drafts on from the last; the head then
    /// forgets what it was fed of its own.
    fn draft(&mut self, head: &mut dyn Session, k: usize) -> Result<Vec<u32>, Error> {
        let mut drafts = Vec::with_capacity(k);
        let confirmed = head.position(self.head)? + self.tokens.len();
        let mut tokens = std::mem::take(&mut self.tokens);
        let mut hidden = std::mem::take(&mut self.hidden);
        for _ in 0..k {
            let mut rows = TapCopy::of(&self.nextn.recycle);
            let chunk = Chunk { slot: self.head, tokens: &tokens, rows: OutputRows::Last };
            let extra = ExtraInputs { hidden: &hidden, ..ExtraInputs::default() };
            let logits = single_chunk(head.step_with(&[chunk], extra, &mut rows)?)?;
            let draft = greedy(logits.row(0));
            drafts.push(draft);
            tokens = vec![draft];
            hidden = rows.last();
        }
        head.truncate(self.head, confirmed)?;
        Ok(drafts)
    }

    /// Gives both slots back.
    pub fn end(
        self,
        model: &mut dyn Session,
        head: &mut dyn Session,
    ) -> Result<DraftCounts, Error> {
        model.release(self.slot)?;
        head.release(self.head)?;
        Ok(self.tally)
    }
}

/// Decodes greedily with drafts of `k` tokens until there are `count`.
pub fn generate(
    model: &mut dyn Session,
    head: &mut dyn Session,
    prompt: &[u32],
    count: usize,
    k: usize,
) -> Result<(Vec<u32>, DraftCounts), Error> {
    let (mut drafter, first) = Drafter::begin(model, head, prompt)?;
    let mut tokens = vec![first];
    while tokens.len() < count {
        tokens.extend(drafter.advance(model, head, k)?);
    }
    tokens.truncate(count);
    Ok((tokens, drafter.end(model, head)?))
}

/// Decodes greedily, token by token: what drafts must not change.
pub fn plain(model: &mut dyn Session, prompt: &[u32], count: usize) -> Result<Vec<u32>, Error> {
    let slot = model.open_slot();
    let mut tokens = Vec::with_capacity(count);
    let mut fed = prompt.to_vec();
    while tokens.len() < count {
        let chunk = Chunk { slot, tokens: &fed, rows: OutputRows::Last };
        let logits = single_chunk(model.step(&[chunk], &mut NoProbe)?)?;
        fed = vec![greedy(logits.row(0))];
        tokens.extend(&fed);
    }
    model.release(slot)?;
    Ok(tokens)
}

/// Returns the logits of a step with one chunk.
fn single_chunk(logits: Vec<Logits>) -> Result<Logits, Error> {
    let given = logits.len();
    logits.into_iter().next().ok_or_else(|| {
        Error::Draft(format!("the engine gave logits of {given} chunks, expected 1"))
    })
}

/// Copies one tap.
struct TapCopy<'a> {
    tap: &'a str,
    count: usize,
    data: Vec<f32>,
}

impl<'a> TapCopy<'a> {
    fn of(tap: &'a str) -> Self {
        Self { tap, count: 0, data: Vec::new() }
    }

    /// Returns the last row.
    fn last(mut self) -> Vec<f32> {
        let width = self.data.len().checked_div(self.count).unwrap_or(0);
        self.data.split_off(self.data.len() - width)
    }
}

impl Probe for TapCopy<'_> {
    fn wants(&self, tap: &str) -> bool {
        tap == self.tap
    }

    fn tap(&mut self, _tap: &str, shape: &[usize], data: &mut [f32]) {
        self.count = shape.first().copied().unwrap_or(0);
        data.clone_into(&mut self.data);
    }
}
