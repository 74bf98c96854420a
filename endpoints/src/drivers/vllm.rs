//! vLLM's OpenAI server: `/v1/completions` with ids, and log-probabilities of prompts.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::{Value, json};

use super::EndpointDriver;
use super::flag;
use super::openai::{OpenAiLogprobs, ids_of_text};
use crate::http::{ServerConnection, ServerResponse};
use crate::json::{LogprobById, few};
use crate::{
    Endpoint, EndpointOptions, Error, Generation, LogprobRow, LogprobSupport, PrefixCache,
    PromptRequest, PromptScores, ServerFacts,
};

pub(super) static DRIVER: EndpointDriver = EndpointDriver {
    name: "vllm",
    about: "vLLM's OpenAI server",
    shows: &["rows", "tokens"],
    sheet: Some("vllm"),
    probe: "/version",
    knows: |version, models| {
        let owner = super::owner(models);
        version.get("version").is_some_and(Value::is_string)
            && (owner == "vllm" || owner.is_empty())
    },
    open,
};

/// Numbers of entries per row to try if more are rejected: the server's usual limit, then fewer. With none,
/// a row has only its own token.
const FEWER: [usize; 4] = [20, 5, 1, 0];

#[derive(Deserialize)]
struct VllmCompletion {
    #[serde(deserialize_with = "few")]
    choices: Vec<VllmChoice>,
}

#[derive(Deserialize)]
struct VllmChoice {
    prompt_logprobs: Option<Vec<Option<LogprobById>>>,
    prompt_token_ids: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
    logprobs: Option<OpenAiLogprobs>,
}

struct Vllm {
    http: ServerConnection,
    facts: ServerFacts,
    vocab: usize,
    salts: AtomicU64,
}

pub(super) fn open(
    http: ServerConnection,
    facts: ServerFacts,
    options: &EndpointOptions,
) -> Result<Box<dyn Endpoint>, Error> {
    let vocab = options.vocab;
    let mut server = Vllm { http, facts, vocab, salts: AtomicU64::new(0) };
    server.facts.cache_off = true;
    server.facts.ignores_eos = true;
    let probe = PromptRequest { tokens: &[0, 0], cache: PrefixCache::Off };
    let largest = options.top.min(vocab);
    let mut refused = None;
    for count in counts_from(largest) {
        server.facts.scores = match count {
            0 => LogprobSupport::Target,
            _ if count == vocab => LogprobSupport::Full,
            _ => LogprobSupport::Top(count),
        };
        match limited(server.score(&probe, &[0]))? {
            Ok(_) => break,
            Err(words) => refused = refused.or(Some((count, words))),
        }
        server.facts.scores = LogprobSupport::None;
    }
    if let Some((count, words)) = refused {
        let driver = super::DRIVERS.into_iter().find(|driver| driver.name == server.facts.driver);
        let raise =
            flag(driver.unwrap_or(&DRIVER), "max_logprobs").filter(|_| words.contains("logprob"));
        let raise =
            raise.map(|flag| format!("; start the server with `{flag} -1`")).unwrap_or_default();
        server.facts.hidden.push(format!(
            "{count} log-probabilities for each position of a prompt: {words}{raise}"
        ));
    }
    let mut refused = None;
    for count in counts_from(FEWER[0].min(largest)) {
        server.facts.generates = Some(count);
        match limited(server.generate(&probe, 1))? {
            Ok(_) => return Ok(Box::new(server)),
            Err(words) => refused = refused.or(Some(words)),
        }
    }
    server.facts.generates = None;
    let words = refused.unwrap_or_default();
    server.facts.hidden.push(format!("ids of generated tokens: {words}"));
    Ok(Box::new(server))
}

/// Returns the numbers of log-probabilities to request in turn: the largest, then fewer.
fn counts_from(largest: usize) -> impl Iterator<Item = usize> {
    std::iter::once(largest).chain(FEWER.into_iter().filter(move |fewer| *fewer < largest))
}

/// Separates a rejected request, with the server's message, from other failures.
fn limited<T>(answer: Result<T, Error>) -> Result<Result<T, String>, Error> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(Error::Status { code: 400 | 422, words, .. }) => Ok(Err(words)),
        Err(error) => Err(error),
    }
}

impl Vllm {
    fn body(&self, ask: &PromptRequest<'_>, tokens: &[u32]) -> Value {
        let mut body = json!({
            "model": self.facts.model, "prompt": tokens, "temperature": 0, "add_special_tokens": false,
            "return_token_ids": true,
        });
        if ask.cache == PrefixCache::Off {
            let salt = self.salts.fetch_add(1, Ordering::Relaxed);
            body["cache_salt"] = json!(format!("onboard-{}-{salt}", std::process::id()));
        }
        body
    }

    fn choice(&self, body: &Value) -> Result<(ServerResponse, VllmChoice), Error> {
        let answer = self.http.post("/v1/completions", body)?;
        let read: VllmCompletion = answer.json()?;
        let count = read.choices.len();
        let mut choices = read.choices.into_iter();
        match (choices.next(), count) {
            (Some(choice), 1) => Ok((answer, choice)),
            _ => Err(answer.unusable(format!("it has {count} choices; expected 1"))),
        }
    }
}

impl Endpoint for Vllm {
    fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    fn score(&self, ask: &PromptRequest<'_>, positions: &[usize]) -> Result<PromptScores, Error> {
        // Rows begin with the second token, so one more token shows the row after the last.
        let tokens: Vec<u32> = ask.tokens.iter().chain(ask.tokens.first()).copied().collect();
        let mut body = self.body(ask, &tokens);
        body["max_tokens"] = json!(1);
        body["prompt_logprobs"] = match self.facts.scores {
            LogprobSupport::Full => json!(-1),
            LogprobSupport::Top(count) => json!(count),
            LogprobSupport::Target | LogprobSupport::None => json!(0),
        };
        let (answer, choice) = self.choice(&body)?;
        let Some(mut all) = choice.prompt_logprobs else {
            return Err(answer.unusable("it has no `prompt_logprobs`, which were asked for"));
        };
        if all.len() != tokens.len() {
            let count = all.len();
            let want = tokens.len();
            return Err(
                answer.unusable(format!("`prompt_logprobs` has {count} entries for {want} tokens"))
            );
        }
        let mut rows = Vec::with_capacity(positions.len());
        for &position in positions {
            let entries = all.get_mut(position + 1).and_then(Option::take);
            let Some(LogprobById(entries)) = entries else {
                return Err(
                    answer.unusable(format!("`prompt_logprobs` has nothing at {}", position + 1))
                );
            };
            let next = ask.tokens.get(position + 1);
            let target = next.and_then(|next| entries.iter().find(|e| e.0 == *next)).map(|e| e.1);
            let row = LogprobRow::of(entries, target, self.vocab);
            rows.push(row.map_err(|why| answer.unusable(format!("position {position}: {why}")))?);
        }
        // The token after the prompt is our own.
        let echo = choice.prompt_token_ids.map(|mut ids| {
            ids.truncate(ids.len().saturating_sub(1));
            ids
        });
        Ok(PromptScores { rows, echo })
    }

    fn generate(&self, ask: &PromptRequest<'_>, count: usize) -> Result<Generation, Error> {
        let mut body = self.body(ask, ask.tokens);
        body["max_tokens"] = json!(count);
        body["ignore_eos"] = json!(true);
        body["logprobs"] = json!(self.facts.generates.unwrap_or(0));
        body["return_tokens_as_token_ids"] = json!(true);
        let (answer, choice) = self.choice(&body)?;
        let Some(logprobs) = choice.logprobs else {
            return Err(answer.unusable("it has no `logprobs`, which were asked for"));
        };
        let ids = choice.token_ids.or_else(|| ids_of_text(&logprobs.tokens));
        let Some(ids) = ids else {
            return Err(answer.unusable("it has no `token_ids`, which were asked for"));
        };
        let rows = logprobs.rows(&ids, self.vocab).map_err(|why| answer.unusable(why))?;
        Ok(Generation { ids, rows, echo: choice.prompt_token_ids })
    }

    fn tokenize(&self, text: &str) -> Result<Option<Vec<u32>>, Error> {
        #[derive(Deserialize)]
        struct VllmTokens {
            tokens: Vec<u32>,
        }
        let body =
            json!({ "model": self.facts.model, "prompt": text, "add_special_tokens": false });
        match self.http.post("/tokenize", &body) {
            Ok(answer) => answer.json::<VllmTokens>().map(|read| Some(read.tokens)),
            Err(error) if error.status().is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn alive(&self) -> Result<(), Error> {
        self.http.get("/health").map(|_| ())
    }
}
