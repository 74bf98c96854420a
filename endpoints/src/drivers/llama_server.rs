//! llama.cpp's server: `/completion`, one request for each row of a prompt.

use std::sync::Mutex;

use registry::dtype::Dtype;
use serde::Deserialize;
use serde_json::json;

use super::EndpointDriver;
use super::{flag, sheet};
use crate::http::{ServerConnection, ServerResponse};
use crate::{
    Endpoint, EndpointOptions, Error, Generation, LogprobRow, LogprobRowError, LogprobSupport,
    NarrowOps, PrefixCache, PromptRequest, PromptScores, RoundedProducts, RowForm, ServerFacts,
};

pub(super) static DRIVER: EndpointDriver = EndpointDriver {
    name: "llama-server",
    about: "llama.cpp's server, one request for each row",
    shows: &["rows", "tokens"],
    sheet: Some("llama_cpp"),
    probe: "/props",
    knows: |props, _| props.get("default_generation_settings").is_some(),
    open,
};

/// Number of entries per row of a generated token.
const GENERATED: usize = 20;

/// Maximum difference of a log-probability of an f32 file: sums in blocks, exponentials by table or
/// polynomial.
const BOUND: f64 = 1e-3;

/// Settings with which everything is stored in f32; caches are f16 by default, and so is flash attention.
const EXACT: [(&str, &str); 3] =
    [("kv_dtype", "f32"), ("v_dtype", "f32"), ("flash_attention", "off")];

/// Tables of the sheet with the types of weights that round rows, and the form of the rows.
const ROUNDED: [(&str, RowForm); 4] = [
    ("rows_in_f16", RowForm::Narrow(Dtype::F16)),
    ("rows_in_bf16", RowForm::Narrow(Dtype::Bf16)),
    ("rows_in_8_bits_by_32", RowForm::EightBits(32)),
    ("rows_in_8_bits_by_256", RowForm::EightBits(256)),
];

/// Table of the sheet with the ops that compute in f16.
const OPS_IN_F16: &str = "ops_in_f16";

/// Bias that makes a token the most likely one whatever its logit; reported values exclude it.
const BIAS: f64 = 1e3;

/// Number of tokens that are tried if the most likely one hides its row.
const TRIED: u32 = 24;

#[derive(Deserialize)]
struct LlamaCompletion {
    #[serde(default)]
    tokens: Vec<u32>,
    tokens_evaluated: Option<usize>,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    completion_probabilities: Vec<LlamaToken>,
}

#[derive(Deserialize)]
struct LlamaToken {
    id: u32,
    logprob: f64,
    #[serde(default)]
    top_logprobs: Vec<LlamaCandidate>,
}

#[derive(Deserialize)]
struct LlamaCandidate {
    id: u32,
    logprob: f64,
}

struct LlamaServer {
    http: ServerConnection,
    facts: ServerFacts,
    vocab: usize,
    top: usize,
    /// Token of whole characters.
    plain: Mutex<Option<u32>>,
}

fn open(
    http: ServerConnection,
    mut facts: ServerFacts,
    options: &EndpointOptions,
) -> Result<Box<dyn Endpoint>, Error> {
    let vocab = options.vocab;
    let top = options.top.min(options.vocab);
    facts.cache_off = true;
    facts.scores = if top == vocab { LogprobSupport::Full } else { LogprobSupport::Top(top) };
    facts.generates = Some(GENERATED.min(top));
    facts.bound = Some(BOUND);
    let flags: Vec<String> = EXACT
        .iter()
        .filter_map(|(setting, value)| Some(format!("{} {value}", flag(&DRIVER, setting)?)))
        .collect();
    facts.exact = Some(flags.join(" "));
    let tables = sheet(&DRIVER).map(|sheet| sheet.tables).unwrap_or_default();
    facts.products = ROUNDED
        .into_iter()
        .filter_map(|(name, rows)| {
            Some(RoundedProducts { weights: tables.get(name)?.clone(), rows })
        })
        .collect();
    let narrow = tables.get(OPS_IN_F16).cloned();
    facts.narrow_ops = narrow.map(|ops| NarrowOps { ops, dtype: Dtype::F16 }).into_iter().collect();
    let server = LlamaServer { http, facts, vocab, top, plain: Mutex::new(None) };
    // Requests that the server rejects fail here.
    server.last(&PromptRequest { tokens: &[0], cache: PrefixCache::Off }, &[0], 1)?;
    Ok(Box::new(server))
}

impl LlamaServer {
    fn ask(
        &self,
        ask: &PromptRequest<'_>,
        tokens: &[u32],
        count: usize,
        top: usize,
        bias: Option<u32>,
    ) -> Result<(ServerResponse, LlamaCompletion), Error> {
        let mut body = json!({
            "prompt": tokens, "n_predict": count, "n_probs": top, "temperature": 0,
            "cache_prompt": ask.cache == PrefixCache::Default, "post_sampling_probs": false, "return_tokens": true,
            "samplers": ["temperature"], "repeat_penalty": 1.0, "stream": false,
        });
        if let Some(token) = bias {
            body["logit_bias"] = json!([[token, BIAS]]);
        }
        let answer = self.http.post("/completion", &body)?;
        let reply: LlamaCompletion = answer.json()?;
        if reply.truncated {
            let help = "start the server with a longer context (--ctx-size)";
            let problem = format!("it cut the prompt of {} tokens short", tokens.len());
            return Err(Error::Answer { url: answer.url, found: problem, help });
        }
        if let Some(evaluated) =
            reply.tokens_evaluated.filter(|evaluated| *evaluated != tokens.len())
        {
            let want = tokens.len();
            return Err(
                answer.unusable(format!("it counts {evaluated} tokens of a prompt of {want} ids"))
            );
        }
        Ok((answer, reply))
    }

    fn row(&self, chosen: &LlamaToken, target: Option<f32>) -> Result<LogprobRow, LogprobRowError> {
        let mut entries: Vec<(u32, f32)> =
            chosen.top_logprobs.iter().map(|entry| (entry.id, entry.logprob as f32)).collect();
        if entries.is_empty() {
            entries.push((chosen.id, chosen.logprob as f32));
        }
        LogprobRow::of(entries, target, self.vocab)
    }

    /// Returns the row after these tokens. If the chosen token is an incomplete character, the server hides
    /// its row, so a plain token is made the most likely one.
    fn last(
        &self,
        ask: &PromptRequest<'_>,
        tokens: &[u32],
        top: usize,
    ) -> Result<(LogprobRow, Option<u32>), Error> {
        let (mut answer, reply) = self.ask(ask, tokens, 1, top, None)?;
        let mut probabilities = reply.completion_probabilities.into_iter().next();
        let chosen = probabilities.as_ref().map(|chosen| chosen.id);
        if probabilities.is_none() {
            let known = *self.plain.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let spread =
                (0..TRIED).map(|n| (u64::from(n) * self.vocab as u64 / u64::from(TRIED)) as u32);
            for token in known.into_iter().chain(spread) {
                let (other, reply) = self.ask(ask, tokens, 1, top, Some(token))?;
                answer = other;
                probabilities = reply.completion_probabilities.into_iter().next();
                if probabilities.is_some() {
                    *self.plain.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                        Some(token);
                    break;
                }
            }
        }
        let Some(probabilities) = probabilities else {
            let words = "it has no `completion_probabilities`, which were asked for (`n_probs`)";
            return Err(answer.unusable(words));
        };
        let row = self.row(&probabilities, None).map_err(|why| answer.unusable(why.to_string()))?;
        Ok((row, chosen))
    }

    /// Generates token by token over a warm cache. An incomplete character, whose row the server hides, is
    /// taken from the row itself, as its most likely token.
    fn step_by_step(&self, ask: &PromptRequest<'_>, count: usize) -> Result<Generation, Error> {
        let mut generation = Generation::default();
        let mut tokens = ask.tokens.to_vec();
        for _ in 0..count {
            let (mut row, chosen) = self.last(ask, &tokens, self.facts.generates.unwrap_or(1))?;
            let likeliest =
                row.entries().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id as u32);
            let Some(id) = chosen.or(likeliest) else { break };
            row.target = row.at(id);
            tokens.push(id);
            generation.ids.push(id);
            generation.rows.push(row);
        }
        Ok(generation)
    }
}

impl Endpoint for LlamaServer {
    fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    fn score(&self, ask: &PromptRequest<'_>, positions: &[usize]) -> Result<PromptScores, Error> {
        let mut rows = Vec::with_capacity(positions.len());
        for &position in positions {
            let Some(tokens) = ask.tokens.get(..=position) else { break };
            let (mut row, _) = self.last(ask, tokens, self.top)?;
            row.target = ask.tokens.get(position + 1).and_then(|next| row.at(*next));
            rows.push(row);
        }
        Ok(PromptScores { rows, echo: None })
    }

    fn generate(&self, ask: &PromptRequest<'_>, count: usize) -> Result<Generation, Error> {
        let top = self.facts.generates.unwrap_or(1);
        let (answer, reply) = self.ask(ask, ask.tokens, count, top, None)?;
        let shown = &reply.completion_probabilities;
        if shown.len() != reply.tokens.len() || shown.is_empty() {
            return self.step_by_step(ask, count);
        }
        let mut rows = Vec::with_capacity(shown.len());
        for (n, (chosen, id)) in shown.iter().zip(&reply.tokens).enumerate() {
            if chosen.id != *id {
                return Err(answer.unusable(format!(
                    "generated token {n} is {id} in `tokens` and {} in `completion_probabilities`",
                    chosen.id
                )));
            }
            let row = self.row(chosen, Some(chosen.logprob as f32));
            rows.push(row.map_err(|why| answer.unusable(format!("generated token {n}: {why}")))?);
        }
        Ok(Generation { ids: reply.tokens, rows, echo: None })
    }

    fn tokenize(&self, text: &str) -> Result<Option<Vec<u32>>, Error> {
        #[derive(Deserialize)]
        struct LlamaTokens {
            tokens: Vec<u32>,
        }
        let body = json!({ "content": text, "add_special": false, "parse_special": true });
        match self.http.post("/tokenize", &body) {
            Ok(answer) => answer.json::<LlamaTokens>().map(|read| Some(read.tokens)),
            Err(error) if error.status().is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn alive(&self) -> Result<(), Error> {
        self.http.get("/health").map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn props_tell_the_server() {
        assert!((DRIVER.knows)(
            &json!({ "default_generation_settings": {} }),
            &serde_json::Value::Null
        ));
        assert!(!(DRIVER.knows)(&json!({ "version": "1" }), &serde_json::Value::Null));
    }
}
