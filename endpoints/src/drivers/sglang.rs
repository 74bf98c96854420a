//! SGLang's own `/generate`.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::json;

use super::EndpointDriver;
use crate::http::{ServerConnection, ServerResponse};
use crate::json::LogprobPair;
use crate::{
    Endpoint, EndpointOptions, Error, Generation, LogprobRow, LogprobRowError, LogprobSupport,
    PrefixCache, PromptRequest, PromptScores, ServerFacts,
};

pub(super) static DRIVER: EndpointDriver = EndpointDriver {
    name: "sglang",
    about: "SGLang's server, over /generate",
    shows: &["rows", "tokens"],
    sheet: Some("sglang"),
    probe: "/server_info",
    knows: |info, models| {
        super::owner(models) == "sglang"
            || info.get("tp_size").is_some() && info.get("version").is_some()
    },
    open,
};

/// Number of entries per row of a generated token.
const GENERATED: usize = 20;

#[derive(Deserialize)]
struct SglangGeneration {
    output_ids: Option<Vec<u32>>,
    meta_info: SglangMeta,
}

/// A single prompt gives one object; a list of one is equivalent.
struct SglangReply(SglangGeneration);

impl<'de> Deserialize<'de> for SglangReply {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReplyVisitor;
        impl<'de> Visitor<'de> for ReplyVisitor {
            type Value = SglangReply;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object, or a list of one")
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<SglangReply, M::Error> {
                SglangGeneration::deserialize(MapAccessDeserializer::new(map)).map(SglangReply)
            }
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<SglangReply, S::Error> {
                let first = list
                    .next_element()?
                    .ok_or_else(|| <S::Error as serde::de::Error>::invalid_length(0, &self))?;
                match list.next_element::<IgnoredAny>()? {
                    None => Ok(SglangReply(first)),
                    Some(_) => Err(serde::de::Error::invalid_length(2, &self)),
                }
            }
        }
        deserializer.deserialize_any(ReplyVisitor)
    }
}

#[derive(Deserialize)]
struct SglangMeta {
    prompt_tokens: Option<usize>,
    input_token_logprobs: Option<Vec<LogprobPair>>,
    input_top_logprobs: Option<Vec<Option<Vec<LogprobPair>>>>,
    output_token_logprobs: Option<Vec<LogprobPair>>,
    output_top_logprobs: Option<Vec<Option<Vec<LogprobPair>>>>,
}

struct Sglang {
    http: ServerConnection,
    facts: ServerFacts,
    vocab: usize,
    top: usize,
    keys: AtomicU64,
}

fn open(
    http: ServerConnection,
    mut facts: ServerFacts,
    options: &EndpointOptions,
) -> Result<Box<dyn Endpoint>, Error> {
    let vocab = options.vocab;
    let top = options.top.min(options.vocab);
    facts.cache_off = true;
    facts.ignores_eos = true;
    facts.scores = if top == vocab { LogprobSupport::Full } else { LogprobSupport::Top(top) };
    facts.generates = Some(GENERATED.min(top));
    let server = Sglang { http, facts, vocab, top, keys: AtomicU64::new(0) };
    // Requests that the server rejects fail here.
    server.score(&PromptRequest { tokens: &[0, 0], cache: PrefixCache::Off }, &[0])?;
    Ok(Box::new(server))
}

impl Sglang {
    fn ask(
        &self,
        ask: &PromptRequest<'_>,
        count: usize,
        top: usize,
        from: i64,
    ) -> Result<(ServerResponse, SglangGeneration), Error> {
        let mut body = json!({
            "input_ids": ask.tokens,
            "sampling_params": { "temperature": 0, "max_new_tokens": count, "ignore_eos": true },
            "return_logprob": true, "logprob_start_len": from, "top_logprobs_num": top,
        });
        if ask.cache == PrefixCache::Off {
            let key = self.keys.fetch_add(1, Ordering::Relaxed);
            body["extra_key"] = json!(format!("onboard-{}-{key}", std::process::id()));
        }
        let answer = self.http.post("/generate", &body)?;
        let SglangReply(reply) = answer.json()?;
        if let Some(counted) =
            reply.meta_info.prompt_tokens.filter(|counted| *counted != ask.tokens.len())
        {
            let want = ask.tokens.len();
            return Err(
                answer.unusable(format!("it counts {counted} tokens of a prompt of {want} ids"))
            );
        }
        Ok((answer, reply))
    }

    fn row(
        &self,
        top: &[LogprobPair],
        chosen: Option<LogprobPair>,
    ) -> Result<LogprobRow, LogprobRowError> {
        let target = chosen.and_then(|chosen| chosen.logprob);
        let mut entries: Vec<(u32, f32)> = top.iter().filter_map(entry_of).collect();
        if let Some(chosen) = chosen.as_ref().and_then(entry_of)
            && !entries.iter().any(|entry| entry.0 == chosen.0)
        {
            entries.push(chosen);
        }
        LogprobRow::of(entries, target, self.vocab)
    }
}

/// Returns the token and log-probability of a pair; none without a log-probability.
fn entry_of(pair: &LogprobPair) -> Option<(u32, f32)> {
    Some((pair.id, pair.logprob?))
}

impl Endpoint for Sglang {
    fn facts(&self) -> &ServerFacts {
        &self.facts
    }

    fn score(&self, ask: &PromptRequest<'_>, positions: &[usize]) -> Result<PromptScores, Error> {
        let (answer, reply) = self.ask(ask, 1, self.top, 0)?;
        let meta = reply.meta_info;
        let (Some(chosen), Some(top)) = (meta.input_token_logprobs, meta.input_top_logprobs) else {
            return Err(answer.unusable(
                "it has no `input_token_logprobs` and `input_top_logprobs`, which were asked for",
            ));
        };
        if chosen.len() != ask.tokens.len() || top.len() != chosen.len() {
            return Err(answer.unusable(format!(
                "`input_token_logprobs` has {} entries and `input_top_logprobs` {} for {} tokens",
                chosen.len(),
                top.len(),
                ask.tokens.len()
            )));
        }
        let behind = meta.output_top_logprobs.and_then(|rows| rows.into_iter().next().flatten());
        let mut rows = Vec::with_capacity(positions.len());
        for &position in positions {
            let next = position + 1;
            let (top, chosen) = match (top.get(next), &behind) {
                (Some(Some(top)), _) => (top, chosen.get(next).copied()),
                (None, Some(top)) => (top, None),
                _ => {
                    return Err(answer
                        .unusable(format!("position {position}: it has no log-probabilities")));
                }
            };
            let row = self.row(top, chosen);
            rows.push(row.map_err(|why| answer.unusable(format!("position {position}: {why}")))?);
        }
        let echo = chosen.iter().map(|pair| pair.id).collect();
        Ok(PromptScores { rows, echo: Some(echo) })
    }

    fn generate(&self, ask: &PromptRequest<'_>, count: usize) -> Result<Generation, Error> {
        let top = self.facts.generates.unwrap_or(1);
        let (answer, reply) = self.ask(ask, count, top, -1)?;
        let Some(chosen) = reply.meta_info.output_token_logprobs else {
            return Err(answer.unusable("it has no `output_token_logprobs`, which were asked for"));
        };
        let none = Vec::new();
        let tops = reply.meta_info.output_top_logprobs.unwrap_or_default();
        let mut rows = Vec::with_capacity(chosen.len());
        for (n, pair) in chosen.iter().enumerate() {
            let top = tops.get(n).and_then(Option::as_ref).unwrap_or(&none);
            let row = self.row(top, Some(*pair));
            rows.push(row.map_err(|why| answer.unusable(format!("generated token {n}: {why}")))?);
        }
        let ids: Vec<u32> = chosen.iter().map(|pair| pair.id).collect();
        if let Some(other) = reply.output_ids.filter(|other| *other != ids) {
            return Err(answer.unusable(format!(
                "`output_ids` and `output_token_logprobs` are of other tokens ({} and {})",
                other.len(),
                ids.len()
            )));
        }
        Ok(Generation { ids, rows, echo: None })
    }

    fn alive(&self) -> Result<(), Error> {
        self.http.get("/health").map(|_| ())
    }
}
