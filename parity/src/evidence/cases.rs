//! Prompts for a server, and the expected rows.

use endpoints::LogprobRow;
use registry::dtype::Dtype;
use registry::model::Model;

use super::Error;
use crate::dump::{Dump, Logprobs, Phase, Prompt};

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
        let count = rows.rows.min(self.positions.len());
        Ok(Some((0..count).map(|n| self.row_of_dump(&rows, n)).collect()))
    }

    /// Converts a row of a dump, whose entries are sorted by value.
    fn row_of_dump(&self, rows: &Logprobs, n: usize) -> LogprobRow {
        let stored = rows.row(n);
        let mut ids = stored.ids.map(<[u32]>::to_vec);
        let mut values = stored.values.to_vec();
        if let Some(ids) = &mut ids {
            let mut pairs: Vec<(u32, f32)> =
                ids.iter().copied().zip(values.iter().copied()).collect();
            pairs.sort_by_key(|pair| pair.0);
            (*ids, values) = pairs.into_iter().unzip();
        }
        let next = self.tokens.get(self.positions[n] + 1).copied();
        let target = rows.targets.as_ref().map(|targets| targets[n]).filter(|x| !x.is_nan());
        let mut row = LogprobRow { ids, values, target: None };
        row.target = target.or(next.and_then(|next| row.at(next)));
        row
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
    let mut cases = Vec::new();
    if let Some(dump) = dump {
        let causal = dump.manifest.prompts.iter().filter(|prompt| prompt.is_plain());
        for prompt in causal.filter(|prompt| fits(prompt.tokens.len(), count, room)) {
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
        for length in LENGTHS.into_iter().filter(|length| fits(*length, count, room)) {
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

/// Maximum number of prompts of a dump, and of rows of a prompt, for a server that is judged by its noise: a row costs
/// `llama-server` one request with all tokens before it.
const PROMPTS: usize = 5;
const ROWS: usize = 32;

/// Number of rows of an arbitrary prompt.
const FEW: usize = 8;

/// Number of tokens behind the widest window, and the widest window that a prompt exceeds.
const BEHIND: usize = 24;
const WINDOW: usize = 1024;

/// English prose of about 200 tokens. Models predict it, so its log-probabilities show their quality.
const PROSE: &str = "The harbour of the old town lies behind a long stone wall, which was built when ships still carried \
    salt and wool to the cities in the south. Every morning at five o'clock the first boats leave, and before noon they \
    come back with herring, crab and, in a good week, a few large cod. Anna Berg has counted them for thirty years. She \
    writes the name of each boat, the weight of its catch and the price per kilogram into a book with a green cover, and \
    in the evening she adds the numbers up. \"In 1994 we had forty boats,\" she says, \"and today there are eleven. But \
    the water is cleaner, the seals have returned, and young people ask me whether they can learn the work.\" In winter, \
    when the wind blows from the north, the market moves into the hall beside the church. There is hot soup, somebody \
    plays the accordion, and the children run between the tables until their parents take them home. What Anna likes \
    best is the hour before sunrise, when the lamps are still burning and nobody has spoken yet.";

/// Returns the prompts for a server that is judged by its noise. Those of a dump serve as tokens alone; without a dump
/// they are prose, if the server tokenizes it, and arbitrary tokens. One prompt exceeds the widest window.
pub(super) fn noisy_cases(
    model: &Model,
    dump: Option<&Dump>,
    tokenize: impl Fn(&str) -> Result<Option<Vec<u32>>, endpoints::Error>,
    room: usize,
    count: usize,
) -> Result<Vec<ServerPrompt>, Error> {
    let mut texts: Vec<(String, Vec<u32>)> = Vec::new();
    if let Some(dump) = dump {
        let causal = dump.manifest.prompts.iter().filter(|prompt| prompt.is_plain());
        texts.extend(causal.map(|prompt| (prompt.name.clone(), prompt.tokens.clone())));
        texts.retain(|(_, tokens)| fits(tokens.len(), count, room));
        texts.sort_by_key(|(_, tokens)| std::cmp::Reverse(tokens.len()));
        texts.truncate(PROMPTS);
    }
    let prose = tokenize(PROSE)?
        .filter(|ids| fits(ids.len(), count, room) && are_of_prose(ids, model.vocab));
    texts.extend(prose.map(|ids| ("prose".to_owned(), ids)));
    let mut cases: Vec<ServerPrompt> =
        texts.into_iter().map(|(name, tokens)| thinned(name, tokens, 0, ROWS)).collect();
    if dump.is_none() {
        for length in LENGTHS.into_iter().filter(|length| fits(*length, count, room)) {
            let tokens = arbitrary_tokens(length, model.vocab);
            cases.push(thinned(format!("made{length}"), tokens, 0, FEW));
        }
    }
    let windows = model.graph.states.iter().filter_map(|state| state.window);
    let widest = windows.filter(|window| *window <= WINDOW).max();
    if let Some(window) = widest
        && cases.iter().all(|case| case.tokens.len() <= window)
        && fits(window + BEHIND, count, room)
    {
        let tokens = arbitrary_tokens(window + BEHIND, model.vocab);
        cases.push(thinned("window".to_owned(), tokens, window, FEW));
    }
    Ok(cases)
}

/// True if a server with so much room takes a prompt and adds tokens to it; one more shows the row after the prompt.
fn fits(length: usize, count: usize, room: usize) -> bool {
    length > 0 && length + count < room
}

/// True if tokens may be those of [`PROSE`].
fn are_of_prose(ids: &[u32], vocab: usize) -> bool {
    ids.len() <= PROSE.len() && ids.iter().all(|id| (*id as usize) < vocab)
}

/// Returns a prompt with up to `limit` evenly spaced rows from a position on.
fn thinned(name: String, tokens: Vec<u32>, from: usize, limit: usize) -> ServerPrompt {
    let rows = (tokens.len() - from).min(limit);
    let last = tokens.len() - 1;
    let positions = (0..rows).map(|n| from + n * (last - from) / (rows - 1).max(1)).collect();
    ServerPrompt { name, tokens, positions, spread: None, widest: None, prompt: None }
}

/// Generates arbitrary tokens, the same on every machine.
pub(super) fn arbitrary_tokens(length: usize, vocab: usize) -> Vec<u32> {
    let vocab = vocab.max(1) as u64;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_add(length as u64);
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % vocab) as u32
        })
        .collect()
}
