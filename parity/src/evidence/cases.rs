//! Prompts for a server, and the expected rows.

use endpoints::LogprobRow;
use registry::dtype::Dtype;
use registry::model::Model;

use super::Error;
use crate::dump::{Dump, Phase, Prompt};

/// Lengths of prompts without a dump: one token, past kernels of convolutions, past a block.
const LENGTHS: [usize; 4] = [1, 2, 11, 70];

/// Prompt with its expectations.
#[derive(Debug, Clone)]
pub(super) struct ServerPrompt {
    pub(super) name: String,
    pub(super) tokens: Vec<u32>,
    /// Positions of the rows that are compared.
    pub(super) positions: Vec<usize>,
    /// Spread of the reference's ensemble by row, if the dump has one.
    pub(super) spread: Option<Vec<f64>>,
    /// Widest spread of all prompts.
    pub(super) widest: Option<f64>,
    prompt: Option<Prompt>,
}

impl ServerPrompt {
    /// Returns the rows of the dump's f32 run; none without a dump.
    pub(super) fn truth(&self, dump: Option<&Dump>) -> Result<Option<Vec<LogprobRow>>, Error> {
        let (Some(dump), Some(prompt)) = (dump, &self.prompt) else { return Ok(None) };
        let Some(rows) = dump.logprobs(Dtype::F32, prompt, Phase::Prefill)? else {
            return Ok(None);
        };
        let row = |n: usize| {
            let row = rows.row(n);
            let mut ids = row.ids.map(<[u32]>::to_vec);
            let mut values = row.values.to_vec();
            if let Some(ids) = &mut ids {
                // Entries of a dump are sorted by value.
                let mut pairs: Vec<(u32, f32)> =
                    ids.iter().copied().zip(values.iter().copied()).collect();
                pairs.sort_by_key(|pair| pair.0);
                (*ids, values) = pairs.into_iter().unzip();
            }
            let next = self.tokens.get(self.positions[n] + 1).copied();
            let stored = rows.targets.as_ref().map(|targets| targets[n]).filter(|x| !x.is_nan());
            let mut made = LogprobRow { ids, values, target: None };
            made.target = stored.or(next.and_then(|next| made.at(next)));
            made
        };
        Ok(Some((0..rows.rows.min(self.positions.len())).map(row).collect()))
    }
}

/// Returns the prompts of the dump, or generated ones. Prompts that exceed the server's context are
/// omitted, and prompts with a prefix or with several documents: requests have no words for them.
pub(super) fn cases(
    model: &Model,
    dump: Option<&Dump>,
    dtype: Dtype,
    room: usize,
    count: usize,
) -> Result<Vec<ServerPrompt>, Error> {
    // One token more than the prompt shows the row after it.
    let fits = |length: usize| length + count < room;
    let mut cases = Vec::new();
    if let Some(dump) = dump {
        let causal = dump.manifest.prompts.iter().filter(|prompt| prompt.is_causal());
        for prompt in causal.filter(|prompt| fits(prompt.tokens.len())) {
            let positions = prompt.positions(Phase::Prefill);
            let spread = dump.spread(dtype, prompt)?;
            let rows = spread.map(|spread| spread.logprobs.iter().map(|x| f64::from(*x)).collect());
            cases.push(ServerPrompt {
                name: prompt.name.clone(),
                tokens: prompt.tokens.clone(),
                spread: rows.filter(|rows: &Vec<f64>| rows.len() == positions.len()),
                widest: None,
                positions,
                prompt: Some(prompt.clone()),
            });
        }
    } else {
        for length in LENGTHS.into_iter().filter(|length| fits(*length)) {
            cases.push(ServerPrompt {
                name: format!("made{length}"),
                tokens: arbitrary_tokens(length, model.vocab),
                positions: (0..length).collect(),
                spread: None,
                widest: None,
                prompt: None,
            });
        }
    }
    let widest =
        cases.iter().filter_map(|case| case.spread.as_ref()).flatten().copied().reduce(f64::max);
    for case in &mut cases {
        case.widest = widest;
        if case.spread.is_none() {
            case.spread = widest.map(|widest| vec![widest; case.positions.len()]);
        }
    }
    Ok(cases)
}

/// Generates arbitrary tokens, the same on every machine.
pub(super) fn arbitrary_tokens(length: usize, vocab: usize) -> Vec<u32> {
    let vocab = vocab.max(1) as u64;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_add(length as u64);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % vocab) as u32
    };
    (0..length).map(|_| next()).collect()
}
