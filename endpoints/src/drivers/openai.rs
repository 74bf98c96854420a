//! Any server with `/v1/completions`: probing determines what it provides.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};

use super::EndpointDriver;
use crate::http::{ServerConnection, ServerResponse};
use crate::json::few;
use crate::{
    Endpoint, EndpointOptions, Error, Generation, LogprobRow, LogprobSupport, PromptRequest,
    PromptScores, ServerFacts,
};

pub(super) static DRIVER: EndpointDriver = EndpointDriver {
    name: "openai",
    about: "any server with /v1/completions",
    shows: &["tokens"],
    sheet: None,
    probe: "/v1/models",
    knows: |models, _| models.get("data").is_some_and(Value::is_array),
    open,
};

/// Usual number of entries per row of such servers.
const USUAL: usize = 5;

/// Log-probabilities in the format of `/v1/completions`.
#[derive(Debug, Deserialize)]
pub(super) struct OpenAiLogprobs {
    pub(super) tokens: Vec<String>,
    #[serde(rename = "token_logprobs")]
    chosen: Vec<Option<f64>>,
    #[serde(rename = "top_logprobs")]
    likeliest: Option<Vec<Option<LikeliestById>>>,
}

/// Entries of a row that are named by their ids. Others are left out: a text is no id.
#[derive(Debug, Default)]
struct LikeliestById(Vec<(u32, f32)>);

impl<'de> Deserialize<'de> for LikeliestById {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LikeliestVisitor;
        impl<'de> Visitor<'de> for LikeliestVisitor {
            type Value = LikeliestById;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map from tokens to log-probabilities")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<LikeliestById, M::Error> {
                let mut entries = Vec::new();
                while let Some((text, logprob)) = map.next_entry::<String, f64>()? {
                    if let Some(id) = id_of_text(&text) {
                        entries.push((id, logprob as f32));
                    }
                }
                Ok(LikeliestById(entries))
            }
        }
        deserializer.deserialize_map(LikeliestVisitor)
    }
}

impl OpenAiLogprobs {
    /// Returns the rows of generated tokens with these ids. Entries named by text are omitted: a text is no
    /// id.
    pub(super) fn rows(&self, ids: &[u32], vocab: usize) -> Result<Vec<LogprobRow>, String> {
        let tokens = ids.len();
        let count = self.chosen.len();
        if tokens != count {
            return Err(format!("it has {tokens} token ids and {count} log-probabilities"));
        }
        let mut rows = Vec::with_capacity(count);
        for (n, (id, target)) in ids.iter().zip(&self.chosen).enumerate() {
            let target =
                target.ok_or(format!("generated token {n} has no log-probability"))? as f32;
            let top = self.likeliest.as_ref().and_then(|all| all.get(n)?.as_ref());
            let mut entries = top.map(|top| top.0.clone()).unwrap_or_default();
            if !entries.iter().any(|entry| entry.0 == *id) {
                entries.push((*id, target));
            }
            rows.push(
                LogprobRow::of(entries, Some(target), vocab)
                    .map_err(|why| format!("generated token {n}: {why}"))?,
            );
        }
        Ok(rows)
    }
}

/// Parses the id in `token_id:17`.
fn id_of_text(text: &str) -> Option<u32> {
    text.strip_prefix("token_id:")?.parse().ok()
}

/// Parses the ids of tokens that are written as `token_id:17`; none if one is not.
pub(super) fn ids_of_text(tokens: &[String]) -> Option<Vec<u32>> {
    tokens.iter().map(|token| id_of_text(token)).collect()
}

#[derive(Deserialize)]
struct OpenAiCompletion {
    #[serde(deserialize_with = "few")]
    choices: Vec<OpenAiChoice>,
    usage: Option<OpenAiUsage>,
}

#[derive(Deserialize)]
struct OpenAiUsage {
    prompt_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct OpenAiChoice {
    logprobs: Option<OpenAiLogprobs>,
    token_ids: Option<Vec<u32>>,
    prompt_token_ids: Option<Vec<u32>>,
}

struct OpenAi {
    http: ServerConnection,
    facts: ServerFacts,
    vocab: usize,
}

fn open(
    http: ServerConnection,
    facts: ServerFacts,
    options: &EndpointOptions,
) -> Result<Box<dyn Endpoint>, Error> {
    let mut server = OpenAi { http, facts, vocab: options.vocab };
    let probe = PromptRequest { tokens: &[0, 1], cache: crate::PrefixCache::Default };
    server.facts.scores = LogprobSupport::Target;
    let words = match server.score(&probe, &[0]) {
        Ok(scored) if scored.rows.iter().all(|row| row.target.is_some()) => None,
        Ok(_) => Some("the log-probability of a token of the prompt is null".to_owned()),
        Err(error) => Some(rejection(error)?),
    };
    if let Some(words) = words {
        server.facts.scores = LogprobSupport::None;
        server
            .facts
            .hidden
            .push(format!("log-probabilities of prompts (`echo` with `logprobs`): {words}"));
    }
    server.facts.generates = Some(USUAL);
    if let Err(error) = server.generate(&probe, 1) {
        let words = rejection(error)?;
        server.facts.generates = None;
        server.facts.hidden.push(format!("ids of generated tokens (`return_token_ids`): {words}"));
    }
    Ok(Box::new(server))
}

/// Returns the message of a rejected request, which shows what the server hides; any other failure is an error.
fn rejection(error: Error) -> Result<String, Error> {
    match error {
        Error::Status { code: 400..=499, ref words, .. }
            if !matches!(error.status(), Some(401 | 403 | 429)) =>
        {
            Ok(words.clone())
        }
        Error::Answer { found: ref problem, .. } => Ok(problem.clone()),
        other => Err(other),
    }
}

impl OpenAi {
    fn ask(
        &self,
        prompt: &Value,
        more: Value,
    ) -> Result<(ServerResponse, OpenAiCompletion), Error> {
        let mut body =
            json!({ "model": self.facts.model, "prompt": prompt, "temperature": 0, "seed": 0 });
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let answer = self.http.post("/v1/completions", &body)?;
        let read: OpenAiCompletion = answer.json()?;
        if read.choices.len() != 1 {
            return Err(
                answer.unusable(format!("it has {} choices; expected 1", read.choices.len()))
            );
        }
        Ok((answer, read))
    }
}

impl Endpoint for OpenAi {
    fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    fn score(&self, ask: &PromptRequest<'_>, positions: &[usize]) -> Result<PromptScores, Error> {
        let more = json!({ "max_tokens": 1, "logprobs": 1, "echo": true });
        let (answer, mut read) = self.ask(&json!(ask.tokens), more)?;
        let choice = read.choices.remove(0);
        let Some(logprobs) = choice.logprobs else {
            return Err(answer.unusable("it has no `logprobs`, which were asked for"));
        };
        // The prompt, and at most one token after it.
        let length = logprobs.chosen.len();
        let want = ask.tokens.len();
        if length != want && length != want + 1 {
            return Err(answer.unusable(format!(
                "`token_logprobs` has {length} entries for {want} tokens: `echo` has no effect"
            )));
        }
        let mut rows = Vec::with_capacity(positions.len());
        for &position in positions {
            let target = match ask.tokens.get(position + 1) {
                None => None,
                Some(_) => logprobs.chosen.get(position + 1).copied().flatten().map(|x| x as f32),
            };
            let row = LogprobRow::of(Vec::new(), target, self.vocab);
            rows.push(row.map_err(|why| answer.unusable(format!("position {position}: {why}")))?);
        }
        Ok(PromptScores { rows, echo: choice.prompt_token_ids })
    }

    fn generate(&self, ask: &PromptRequest<'_>, count: usize) -> Result<Generation, Error> {
        let more = json!({
            "max_tokens": count, "logprobs": USUAL, "return_token_ids": true, "return_tokens_as_token_ids": true,
        });
        let (answer, mut read) = self.ask(&json!(ask.tokens), more)?;
        let choice = read.choices.remove(0);
        let Some(logprobs) = choice.logprobs else {
            return Err(answer.unusable("it has no `logprobs`, which were asked for"));
        };
        let ids = choice.token_ids.or_else(|| ids_of_text(&logprobs.tokens));
        let Some(ids) = ids else {
            return Err(
                answer.unusable("it names generated tokens by text alone, and a text is no id")
            );
        };
        let rows = logprobs.rows(&ids, self.vocab).map_err(|why| answer.unusable(why))?;
        Ok(Generation { ids, rows, echo: choice.prompt_token_ids })
    }

    fn count_text(&self, text: &str) -> Result<Option<usize>, Error> {
        match self.ask(&json!(text), json!({ "max_tokens": 1 })) {
            Ok((_, read)) => Ok(read.usage.and_then(|usage| usage.prompt_tokens)),
            Err(error) if error.status().is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn alive(&self) -> Result<(), Error> {
        self.http.get("/v1/models").map(|_| ())
    }
}
