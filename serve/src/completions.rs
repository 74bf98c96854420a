//! `/v1/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use chat::{OutputConstraint, ReasoningPrefix};
use engine::sample::Sampling;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::ServedTokenizer;
use crate::answer::{ChoiceText, LogprobLists, PromptRows, TokenNames};
use crate::body;
use crate::error::ApiError;
use crate::fields::{
    self, NEUTRAL, PromptField, SamplingFields, StopField, StreamOptions, StreamUsage, neutral,
};
use crate::logprobs::TokenScore;
use crate::object;
use crate::penalties::{Penalties, PenaltyFields};
use crate::rules::{self, ResponseFormat, StructuredOutputs};
use crate::sequence::{CancelFlag, SequenceEvent, SequenceRequest};
use crate::sse::{self, GrowingAnswer};
use crate::state::{ServerState, now};
use crate::text_stream::{self, TextStream};

/// Number of tokens to add if a request does not tell, as in the OpenAI API.
const MOST: usize = 16;
/// Most events that wait for a client, for each sequence and in all.
const EVENTS: (usize, usize) = (16, 4096);

/// Fields of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompletionFields {
    model: Option<String>,
    prompt: PromptField,
    #[serde(default, deserialize_with = "object::integer")]
    max_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f32>,
    #[serde(default, deserialize_with = "object::integer")]
    top_k: Option<i64>,
    min_p: Option<f32>,
    #[serde(default, deserialize_with = "object::integer")]
    seed: Option<i64>,
    #[serde(default, deserialize_with = "object::integer")]
    n: Option<usize>,
    #[serde(default, deserialize_with = "object::integer")]
    best_of: Option<usize>,
    stop: Option<StopField>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    logit_bias: Option<BTreeMap<String, f32>>,
    echo: Option<bool>,
    #[serde(default, deserialize_with = "object::integer")]
    logprobs: Option<usize>,
    #[serde(default, deserialize_with = "object::integer")]
    prompt_logprobs: Option<i64>,
    add_special_tokens: Option<bool>,
    skip_special_tokens: Option<bool>,
    return_token_ids: Option<bool>,
    return_tokens_as_token_ids: Option<bool>,
    cache_salt: Option<String>,
    stream: Option<bool>,
    #[serde(default, deserialize_with = "object::optional")]
    stream_options: Option<StreamOptions>,
    suffix: Option<String>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    #[serde(default, deserialize_with = "object::integer")]
    min_tokens: Option<usize>,
    #[serde(default, deserialize_with = "object::optional")]
    response_format: Option<ResponseFormat>,
    #[serde(default, deserialize_with = "object::optional")]
    structured_outputs: Option<StructuredOutputs>,
    #[expect(dead_code, reason = "it names a person, which changes no answer")]
    user: Option<String>,
}

/// A checked request.
struct CompletionPlan {
    prompts: Vec<Arc<[u32]>>,
    /// The prompts as parts of the answer, if they are.
    echoed: Option<Vec<EchoedPrompt>>,
    most: usize,
    sampling: Sampling,
    penalties: Option<Penalties>,
    choices: usize,
    stops: Vec<String>,
    ends: Arc<[u32]>,
    bias: Arc<[(u32, f32)]>,
    constraint: Option<Arc<OutputConstraint>>,
    form: CompletionForm,
    salt: Arc<str>,
}

/// A prompt in the answer.
#[derive(Debug, Default)]
struct EchoedPrompt {
    text: String,
    /// Characters before each token, if log-probabilities are shown.
    offsets: Arc<[usize]>,
}

/// The form of an answer.
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the request")]
#[derive(Debug, Clone, Copy)]
struct CompletionForm {
    echo: bool,
    /// Number of likely tokens in `logprobs`.
    logprobs: Option<usize>,
    /// Number of likely tokens in `prompt_logprobs`.
    prompt_logprobs: Option<usize>,
    token_ids: bool,
    names_are_ids: bool,
    plain: bool,
    usage: StreamUsage,
}

impl CompletionForm {
    /// Returns the number of likely tokens to score for each token of a prompt.
    fn prompt_top(&self) -> Option<usize> {
        let echoed = self.logprobs.filter(|_| self.echo);
        self.prompt_logprobs.max(echoed)
    }
}

impl CompletionFields {
    async fn check(mut self, state: &Arc<ServerState>) -> Result<CompletionPlan, ApiError> {
        state.check_model(self.model.as_ref())?;
        self.refuse()?;
        let choices = self.n.unwrap_or(1);
        let limit = self.max_tokens.unwrap_or(MOST);
        let count = self.prompt.count();
        if count == 0 || choices == 0 || count.saturating_mul(choices) > state.options.prompts {
            let message = format!(
                "the request has {count} prompts with {choices} answers each; expected 1 to {} answers in all",
                state.options.prompts
            );
            return Err(ApiError::field(if choices == 1 { "prompt" } else { "n" }, message));
        }
        let sampling = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
        };
        let sampling = sampling.check()?;
        let stops = fields::stops(self.stop.take())?;
        let penalties = PenaltyFields {
            presence: self.presence_penalty,
            frequency: self.frequency_penalty,
            repetition: self.repetition_penalty,
        };
        let penalties = penalties.check()?;
        if !stops.is_empty() && state.codec.is_none() {
            return Err(ApiError::field(
                "stop",
                "the model has no tokenizer, so texts are not known",
            ));
        }
        let stop_ids = self.stop_token_ids.take();
        let ends = fields::ends(stop_ids, self.ignore_eos, &state.ends, state.vocab)?;
        let form = self.form(state)?;
        let bias = fields::bias(self.logit_bias.take(), state.vocab)?;
        let constraint =
            match rules::rule(self.response_format.take(), self.structured_outputs.take())? {
                Some((rule, field)) => Some(Arc::new(
                    state.constrain(rule, field, ReasoningPrefix::Absent, None).await?,
                )),
                None => None,
            };
        let (ids, texts) = match self.prompt {
            PromptField::Ids(ids) => (ids, None),
            PromptField::Texts(texts) => {
                for text in &texts {
                    state.check_text(text, "prompt")?;
                }
                let special = self.add_special_tokens.unwrap_or(true);
                (state.encode(texts.clone(), special).await?, Some(texts))
            }
        };
        let mut entries = 0_usize;
        for prompt in &ids {
            state.check_prompt(prompt, limit)?;
            let scored = form.prompt_top().map_or(0, |top| prompt.len().saturating_mul(top + 1));
            let generated = form.logprobs.map_or(0, |top| limit.saturating_mul(top + 1));
            entries =
                entries.saturating_add(scored.saturating_add(generated).saturating_mul(choices));
        }
        let scores = form.prompt_logprobs.is_some();
        state.check_entries(entries, if scores { "prompt_logprobs" } else { "logprobs" })?;
        let prompts: Vec<Arc<[u32]>> = ids.into_iter().map(Arc::from).collect();
        let echoed = if form.echo { Some(echo(state, &prompts, texts, form).await?) } else { None };
        Ok(CompletionPlan {
            prompts,
            echoed,
            most: limit,
            sampling,
            penalties,
            choices,
            stops,
            ends: ends.into(),
            bias: bias.into(),
            constraint,
            form,
            salt: self.cache_salt.unwrap_or_default().into(),
        })
    }

    /// Refuses values of fields that are known and not supported.
    fn refuse(&self) -> Result<(), ApiError> {
        neutral("suffix", self.suffix.as_ref(), &String::new())?;
        neutral("best_of", self.best_of.as_ref(), &self.n.unwrap_or(1))?;
        neutral("min_tokens", self.min_tokens.as_ref(), &0)?;
        Ok(())
    }

    fn form(&self, state: &ServerState) -> Result<CompletionForm, ApiError> {
        let prompt_logprobs = match self.prompt_logprobs {
            None => None,
            Some(-1) => Some(state.vocab),
            Some(count) => Some(usize::try_from(count).map_err(|_| {
                let message =
                    format!("`prompt_logprobs` is {count}; expected 0 or more, or -1 for all");
                ApiError::field("prompt_logprobs", message)
            })?),
        };
        if prompt_logprobs.is_some() && self.stream == Some(true) {
            let message = "`prompt_logprobs` is not streamed; leave out `stream`";
            return Err(ApiError::field("prompt_logprobs", message));
        }
        let streamed = self.stream == Some(true);
        let usage = fields::stream_usage(self.stream_options.as_ref(), streamed)?;
        Ok(CompletionForm {
            echo: self.echo.unwrap_or(false),
            logprobs: self.logprobs.map(|count| count.min(state.vocab)),
            prompt_logprobs: prompt_logprobs.map(|count| count.min(state.vocab)),
            token_ids: self.return_token_ids.unwrap_or(false),
            names_are_ids: self.return_tokens_as_token_ids.unwrap_or(false),
            plain: self.skip_special_tokens.unwrap_or(true),
            usage,
        })
    }
}

/// Returns the texts of prompts for the answer, and the places of their tokens.
async fn echo(
    state: &ServerState,
    prompts: &[Arc<[u32]>],
    texts: Option<Vec<String>>,
    form: CompletionForm,
) -> Result<Vec<EchoedPrompt>, ApiError> {
    let Some(codec) = state.codec.clone() else {
        return Ok(prompts.iter().map(|_| EchoedPrompt::default()).collect());
    };
    let prompts = prompts.to_vec();
    let tokens = prompts.iter().map(|prompt| prompt.len()).sum::<usize>();
    let bytes = tokens.saturating_mul(size_of::<u32>());
    state.work(bytes, move || echoed_prompts(&*codec, &prompts, texts, form)).await
}

/// Returns the texts of prompts, decoded if they are not given, and the places of their tokens if log-probabilities are
/// wanted.
fn echoed_prompts(
    codec: &dyn ServedTokenizer,
    prompts: &[Arc<[u32]>],
    texts: Option<Vec<String>>,
    form: CompletionForm,
) -> Vec<EchoedPrompt> {
    let mut texts = texts.map(Vec::into_iter);
    let echoed = prompts.iter().map(|prompt| {
        let text = texts.as_mut().and_then(Iterator::next);
        let text = text.unwrap_or_else(|| codec.decode(prompt, false).unwrap_or_default());
        let offsets = match form.logprobs {
            Some(_) => text_stream::offsets(codec, prompt, &text).into(),
            None => Arc::default(),
        };
        EchoedPrompt { text, offsets }
    });
    echoed.collect()
}

/// One choice of an answer.
struct CompletionChoice {
    prompt: Arc<[u32]>,
    /// Characters of the echoed prompt, and those before each of its tokens.
    echoed: (usize, Arc<[usize]>),
    progress: ChoiceText,
    /// Log-probabilities and ids that are not taken yet.
    lists: Option<LogprobLists>,
    ids: Vec<u32>,
    /// True once the ids of the prompt were shown.
    prompt_shown: bool,
    scores: Vec<TokenScore>,
    /// True once the end was shown.
    closed: bool,
}

/// An answer that grows.
struct CompletionAnswer {
    state: Arc<ServerState>,
    id: String,
    created: u64,
    form: CompletionForm,
    ends: Arc<[u32]>,
    /// Number of tokens of all prompts.
    prompt_tokens: usize,
    choices: Vec<CompletionChoice>,
}

impl GrowingAnswer for CompletionAnswer {
    fn accept(&mut self, index: usize, event: SequenceEvent) -> Result<(), ApiError> {
        let names = TokenNames { texts: &self.state.texts, ids: self.form.names_are_ids };
        let top = self.form.logprobs.unwrap_or(0);
        let Some(choice) = self.choices.get_mut(index) else { return Ok(()) };
        if choice.progress.finish.is_some() {
            return Ok(());
        }
        match event {
            SequenceEvent::Prompt(scores) => {
                if let Some(lists) = choice.lists.as_mut().filter(|_| self.form.echo) {
                    let scores = std::iter::once(None).chain(scores.iter().map(Some));
                    let (chars, offsets) = &choice.echoed;
                    for (n, (id, score)) in choice.prompt.iter().zip(scores).enumerate() {
                        let offset = offsets.get(n).copied().unwrap_or(*chars);
                        lists.push(*id, score, top, &names, offset);
                    }
                }
                choice.scores = scores;
            }
            SequenceEvent::Token { id, score, end } => {
                choice.ids.push(id);
                choice.progress.push(id, self.ends.contains(&id));
                if let Some(lists) = &mut choice.lists {
                    let offset = choice.echoed.0 + choice.progress.begin();
                    lists.push(id, score.as_ref(), top, &names, offset);
                }
                if let (Some(reason), None) = (end, choice.progress.finish) {
                    choice.progress.end(reason);
                }
            }
            SequenceEvent::End(reason) => choice.progress.end(reason),
            SequenceEvent::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.choices.iter().all(|choice| choice.progress.finish.is_some())
    }

    fn chunks(&mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        for index in 0..self.choices.len() {
            let form = self.form;
            let choice = &mut self.choices[index];
            let finish = choice.progress.finish;
            let grown = !choice.progress.text.is_empty()
                || (form.token_ids && !choice.ids.is_empty())
                || (form.logprobs.is_some() && !choice.ids.is_empty());
            if choice.closed || !(grown || finish.is_some()) {
                continue;
            }
            choice.closed = finish.is_some();
            let mut part = json!({
                "index": index,
                "text": std::mem::take(&mut choice.progress.text),
                "logprobs": choice.lists.as_mut().map(LogprobLists::take),
                "finish_reason": finish,
            });
            let ids = std::mem::take(&mut choice.ids);
            if form.token_ids {
                part["token_ids"] = json!(ids);
                if !std::mem::replace(&mut choice.prompt_shown, true) {
                    part["prompt_token_ids"] = json!(*choice.prompt);
                }
            }
            let mut chunk = self.object(&json!([part]));
            if form.usage.each {
                chunk["usage"] = self.usage();
            }
            chunks.push(chunk);
        }
        chunks
    }

    fn last_chunks(&mut self) -> Vec<Value> {
        if !self.form.usage.last {
            return Vec::new();
        }
        let mut chunk = self.object(&json!([]));
        chunk["usage"] = self.usage();
        vec![chunk]
    }
}

/// A choice of a whole answer.
#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<&'a LogprobLists>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptRows<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

/// A whole answer.
#[derive(Serialize)]
struct WholeCompletion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<WholeChoice<'a>>,
    usage: Value,
}

impl CompletionAnswer {
    fn object(&self, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.state.name, "choices": choices,
        })
    }

    fn usage(&self) -> Value {
        let generated: usize = self.choices.iter().map(|choice| choice.progress.count).sum();
        json!({
            "prompt_tokens": self.prompt_tokens, "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        })
    }

    fn whole(&self) -> WholeCompletion<'_> {
        let form = self.form;
        let choices = self.choices.iter().enumerate().map(|(index, choice)| WholeChoice {
            index,
            text: &choice.progress.text,
            logprobs: choice.lists.as_ref(),
            finish_reason: choice.progress.finish,
            prompt_logprobs: form.prompt_logprobs.map(|count| PromptRows {
                scores: &choice.scores,
                count,
                texts: &self.state.texts,
            }),
            token_ids: form.token_ids.then_some(&choice.ids[..]),
            prompt_token_ids: form.token_ids.then_some(&choice.prompt[..]),
        });
        WholeCompletion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.state.name,
            choices: choices.collect(),
            usage: self.usage(),
        }
    }
}

impl CompletionPlan {
    /// Returns the answer without its text, and the sequences that make it.
    fn start(
        self,
        state: &Arc<ServerState>,
        begun: Instant,
        events: &mpsc::Sender<crate::sequence::SequenceMessage>,
    ) -> (CompletionAnswer, Vec<SequenceRequest>) {
        let mut choices = Vec::new();
        let mut sequences = Vec::new();
        for (n, prompt) in self.prompts.iter().enumerate() {
            for choice in 0..self.choices {
                let cancel = CancelFlag::default();
                let stops = self.stops.clone();
                let stream = TextStream::new(state.codec.clone(), prompt, stops, self.form.plain);
                let mut progress = ChoiceText::new(stream, cancel.clone());
                let mut echoed = (0, Arc::default());
                if let Some(prompt) = self.echoed.as_ref().and_then(|all| all.get(n)) {
                    progress.text.clone_from(&prompt.text);
                    echoed = (prompt.text.chars().count(), Arc::clone(&prompt.offsets));
                }
                choices.push(CompletionChoice {
                    prompt: Arc::clone(prompt),
                    echoed,
                    progress,
                    lists: self.form.logprobs.map(|_| LogprobLists::default()),
                    ids: Vec::new(),
                    prompt_shown: false,
                    scores: Vec::new(),
                    closed: false,
                });
                let seed = self.sampling.seed.wrapping_add(choice as u64);
                sequences.push(SequenceRequest {
                    index: sequences.len(),
                    prompt: Arc::clone(prompt),
                    most: self.most,
                    sampling: Sampling { seed, ..self.sampling.clone() },
                    penalties: self.penalties,
                    bias: Arc::clone(&self.bias),
                    constraint: self.constraint.clone(),
                    ends: Arc::clone(&self.ends),
                    prompt_top: self.form.prompt_top(),
                    top: self.form.logprobs,
                    salt: Arc::clone(&self.salt),
                    events: events.clone(),
                    cancel,
                    queued: begun,
                    deadline: begun + state.options.request_time,
                });
            }
        }
        let answer = CompletionAnswer {
            state: Arc::clone(state),
            id: state.id("cmpl"),
            created: now(),
            form: self.form,
            ends: self.ends,
            prompt_tokens: self.prompts.iter().map(|prompt| prompt.len()).sum(),
            choices,
        };
        (answer, sequences)
    }
}

/// Answers a request.
pub(crate) async fn completions(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let guard = state.begin()?;
    let fields: CompletionFields = body::read(&state, request, &NEUTRAL).await?;
    let streamed = fields.stream == Some(true);
    let plan = guard.within(fields.check(&state)).await?;
    let count = plan.prompts.len() * plan.choices;
    let (sender, mut events) = mpsc::channel((EVENTS.0 * count).min(EVENTS.1));
    let (mut answer, sequences) = plan.start(&state, guard.begun, &sender);
    drop(sender);
    state.submit(sequences)?;
    if streamed {
        return Ok(sse::respond(answer, events, guard, state));
    }
    sse::complete(&mut answer, &mut events, &guard).await?;
    // Rows of whole vocabularies take a while to write.
    let bytes = tokio::task::spawn_blocking(move || serde_json::to_vec(&answer.whole())).await;
    let bytes = bytes.ok().and_then(Result::ok).ok_or_else(|| {
        ApiError::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            "the answer cannot be written as JSON",
        )
    })?;
    let mut response = bytes.into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}
