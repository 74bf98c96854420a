//! `/v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use chat::{
    CallableTool, ChatRequest, Format, OrderedJson, OutputConstraint, OutputParser, OutputRule,
    ParserOptions, ReasoningMode, ReasoningPrefix, RenderControl, TemplateError,
};
use engine::sample::Sampling;
use indexmap::IndexMap;
use serde::Deserialize;
use tokio::sync::mpsc;

use crate::answer::ChoiceText;
use crate::body;
use crate::chat_answer::{ChatAnswer, ChatChoice};
use crate::error::ApiError;
use crate::fields::{
    self, NEUTRAL, NEUTRAL_OF_CHATS, SamplingFields, StopField, StreamOptions, neutral,
};
use crate::model::ChatFormat;
use crate::object;
use crate::penalties::{Penalties, PenaltyFields};
use crate::rules::{self, ResponseFormat, StructuredOutputs};
use crate::sequence::{CancelFlag, SequenceMessage, SequenceRequest};
use crate::sse;
use crate::state::{RequestGuard, ServerState, now};
use crate::text_stream::TextStream;

/// Fields of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatFields {
    model: Option<String>,
    messages: Vec<OrderedJson>,
    tools: Option<Vec<OrderedJson>>,
    tool_choice: Option<OrderedJson>,
    parallel_tool_calls: Option<bool>,
    documents: Option<Vec<OrderedJson>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<OrderedJson>,
    reasoning_effort: Option<String>,
    #[serde(default, deserialize_with = "object::integer")]
    max_tokens: Option<usize>,
    #[serde(default, deserialize_with = "object::integer")]
    max_completion_tokens: Option<usize>,
    temperature: Option<f64>,
    top_p: Option<f32>,
    #[serde(default, deserialize_with = "object::integer")]
    top_k: Option<i64>,
    min_p: Option<f32>,
    #[serde(default, deserialize_with = "object::integer")]
    seed: Option<i64>,
    #[serde(default, deserialize_with = "object::integer")]
    n: Option<usize>,
    stop: Option<StopField>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    logit_bias: Option<BTreeMap<String, f32>>,
    logprobs: Option<bool>,
    #[serde(default, deserialize_with = "object::integer")]
    top_logprobs: Option<usize>,
    add_special_tokens: Option<bool>,
    skip_special_tokens: Option<bool>,
    return_token_ids: Option<bool>,
    cache_salt: Option<String>,
    stream: Option<bool>,
    #[serde(default, deserialize_with = "object::optional")]
    stream_options: Option<StreamOptions>,
    #[serde(default, deserialize_with = "object::optional")]
    response_format: Option<ResponseFormat>,
    #[serde(default, deserialize_with = "object::optional")]
    structured_outputs: Option<StructuredOutputs>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    #[serde(default, deserialize_with = "object::integer")]
    min_tokens: Option<usize>,
    #[expect(dead_code, reason = "it names a person, which changes no answer")]
    user: Option<String>,
}

impl ChatFields {
    /// Refuses values of fields that are known and not supported.
    fn refuse(&self) -> Result<(), ApiError> {
        neutral("min_tokens", self.min_tokens.as_ref(), &0)?;
        if self.top_logprobs.is_some() && self.logprobs != Some(true) {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`"));
        }
        Ok(())
    }

    /// Takes the tools of the request, and the use that the model has to make of them.
    fn tools(&mut self) -> Result<(Option<Vec<OrderedJson>>, ToolUse), ApiError> {
        let tools = self.tools.take().filter(|tools| !tools.is_empty());
        let chosen = match &self.tool_choice {
            None | Some(OrderedJson::Null) => ToolUse::Free,
            Some(OrderedJson::Text(word)) => match word.as_str() {
                "auto" => ToolUse::Free,
                "none" => return Ok((None, ToolUse::Free)),
                "required" => ToolUse::Any,
                other => {
                    let message = format!(
                        "`tool_choice` is `{other}`; expected `auto`, `none`, `required` or a function"
                    );
                    return Err(ApiError::field("tool_choice", message));
                }
            },
            Some(choice) => match function_name(choice) {
                Some(name) => ToolUse::Named(name),
                None => {
                    return Err(ApiError::field(
                        "tool_choice",
                        "`tool_choice` is neither a word nor a function; expected `auto`, `none`, `required`, or \
                         `{\"type\": \"function\", \"function\": {\"name\": NAME}}`",
                    ));
                }
            },
        };
        if chosen != ToolUse::Free && tools.is_none() {
            let message = "`tool_choice` forces a call, and there are no `tools`";
            return Err(ApiError::field("tool_choice", message));
        }
        Ok((tools, chosen))
    }

    /// Takes the fields that choose the tokens of an answer and end it, and checks them.
    fn sampling(&mut self, state: &ServerState) -> Result<ChatSampling, ApiError> {
        let count = self.n.unwrap_or(1);
        if count == 0 || count > state.options.prompts {
            let message = format!("`n` is {count}; expected 1 to {}", state.options.prompts);
            return Err(ApiError::field("n", message));
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
        let bias = fields::bias(self.logit_bias.take(), state.vocab)?.into();
        let stop_ids = self.stop_token_ids.take();
        let ends = fields::ends(stop_ids, self.ignore_eos, &state.ends, state.vocab)?.into();
        Ok(ChatSampling { count, sampling, stops, penalties, bias, ends })
    }

    /// Takes the conversation that the template renders.
    fn conversation(&mut self, tools: Option<Vec<OrderedJson>>) -> Result<ChatRequest, ApiError> {
        let continues = self.continue_final_message.unwrap_or(false);
        let mut variables = variables(self.chat_template_kwargs.take())?;
        if let Some(effort) = self.reasoning_effort.take() {
            variables.insert("reasoning_effort".to_owned(), effort.as_str().into());
        }
        Ok(ChatRequest {
            messages: std::mem::take(&mut self.messages),
            tools,
            documents: self.documents.take(),
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            variables,
            now: None,
        })
    }

    /// Returns the number of tokens that may be added to a prompt, and the number of likely tokens to report for
    /// each of them, if any are.
    fn limits(
        &self,
        state: &ServerState,
        prompt: &[u32],
        count: usize,
    ) -> Result<(usize, Option<usize>), ApiError> {
        let room = state.context.saturating_sub(prompt.len());
        let limit = self.max_completion_tokens.or(self.max_tokens).unwrap_or(room.max(1));
        state.check_prompt(prompt, limit)?;
        let shown = self.logprobs.unwrap_or(false);
        let top = shown.then(|| self.top_logprobs.unwrap_or(0).min(state.vocab));
        state.check_entries(
            top.map_or(0, |top| limit.saturating_mul(top + 1).saturating_mul(count)),
            "top_logprobs",
        )?;
        Ok((limit, top))
    }
}

/// Choice of the tokens of an answer, and their ends.
struct ChatSampling {
    /// Number of answers.
    count: usize,
    sampling: Sampling,
    stops: Vec<String>,
    penalties: Option<Penalties>,
    bias: Arc<[(u32, f32)]>,
    ends: Arc<[u32]>,
}

/// Tools of a request, and the use that the model has to make of them.
struct RequestTools {
    schemas: Option<Vec<CallableTool>>,
    chosen: ToolUse,
    /// True if an answer may have several calls.
    several: bool,
}

impl RequestTools {
    /// Returns the constraint of an answer that has to be a call, and the format of its calls.
    async fn constraint(
        &self,
        state: &Arc<ServerState>,
        model_format: Option<&'static Format>,
        prefix: ReasoningPrefix,
    ) -> Result<(&'static Format, OutputConstraint), ApiError> {
        let tools = callable(self.schemas.as_deref(), &self.chosen)?;
        let several = self.several;
        let compiled = state.with_compiler("tools", move |compiler: &chat::ConstraintCompiler| {
            let calls = compiler.calls(model_format, &tools, several)?;
            let calls_format = calls.format;
            let compiled = compiler.compile(&OutputRule::Calls(calls), prefix, model_format)?;
            Ok((calls_format, compiled))
        });
        compiled.await
    }
}

/// Everything that the answers of a request share.
struct ChatPlan {
    text: String,
    prompt: Arc<[u32]>,
    /// Maximum number of tokens to add.
    limit: usize,
    /// Number of likely tokens to report for each token, if any are.
    top: Option<usize>,
    sampling: ChatSampling,
    calls: RequestTools,
    /// Format that the parser reads.
    reader: Option<&'static Format>,
    constraint: Option<Arc<OutputConstraint>>,
    /// True if special tokens are left out of the text.
    plain: bool,
    streamed: bool,
    salt: Arc<str>,
}

impl ChatPlan {
    /// Returns the choices of an answer, empty yet, and the sequences that fill them.
    fn sequences(
        &self,
        state: &ServerState,
        guard: &RequestGuard,
        sender: &mpsc::Sender<SequenceMessage>,
    ) -> (Vec<ChatChoice>, Vec<SequenceRequest>) {
        let mut choices = Vec::new();
        let mut sequences = Vec::new();
        let ChatSampling { count, sampling, stops, penalties, bias, ends } = &self.sampling;
        for index in 0..*count {
            let cancel = CancelFlag::default();
            let stream =
                TextStream::new(state.codec.clone(), &self.prompt, stops.clone(), self.plain);
            let progress = ChoiceText::new(stream, cancel.clone());
            let schemas = self.calls.schemas.as_deref();
            let parser = parser(self.reader, &self.text, schemas, self.streamed);
            choices.push(ChatChoice::new(progress, parser, !self.calls.several));
            sequences.push(SequenceRequest {
                index,
                prompt: Arc::clone(&self.prompt),
                most: self.limit,
                sampling: Sampling {
                    seed: sampling.seed.wrapping_add(index as u64),
                    ..sampling.clone()
                },
                penalties: *penalties,
                bias: Arc::clone(bias),
                constraint: self.constraint.clone(),
                ends: Arc::clone(ends),
                prompt_top: None,
                top: self.top,
                salt: Arc::clone(&self.salt),
                events: sender.clone(),
                cancel,
                queued: guard.begun,
                deadline: guard.begun + state.options.request_time,
            });
        }
        (choices, sequences)
    }
}

/// Use that an answer makes of the tools.
#[derive(Debug, PartialEq, Eq)]
enum ToolUse {
    /// Calls as the model likes.
    Free,
    /// At least one call.
    Any,
    /// Calls of this tool.
    Named(String),
}

/// Returns the schemas of tools by name, in the order of the request.
fn schemas(tools: &[OrderedJson]) -> Result<Vec<CallableTool>, ApiError> {
    let mut schemas: Vec<CallableTool> = Vec::new();
    for (n, tool) in tools.iter().enumerate() {
        let kind = tool.get("type").and_then(OrderedJson::as_str).unwrap_or("function");
        if kind != "function" {
            let message = format!(
                "`tools[{n}].type` is `{kind}`, which is not supported; expected `function`"
            );
            return Err(ApiError {
                code: Some("unsupported_value"),
                ..ApiError::field("tools", message)
            });
        }
        let function = tool.get("function");
        let name = function.and_then(|function| function.get("name")?.as_str());
        let name = name.ok_or_else(|| {
            ApiError::field(
                "tools",
                format!("`tools[{n}].function.name` is missing; expected a text"),
            )
        })?;
        let parameters = function.and_then(|function| function.get("parameters"));
        let parameters = parameters.and_then(|json| serde_json::to_value(json).ok());
        schemas.retain(|tool| tool.name != name);
        schemas.push(CallableTool {
            name: name.to_owned(),
            parameters: parameters.unwrap_or_default(),
        });
    }
    Ok(schemas)
}

/// Variables of templates that are fields of a request.
const FIELDS: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];

/// Returns the variables of a template.
pub(crate) fn variables(
    field: Option<OrderedJson>,
) -> Result<IndexMap<String, OrderedJson>, ApiError> {
    match field {
        None => Ok(IndexMap::new()),
        Some(OrderedJson::Map(map)) => {
            match FIELDS.into_iter().find(|name| map.contains_key(*name)) {
                None => Ok(map),
                Some(name) => {
                    let message = format!(
                        "`chat_template_kwargs` has `{name}`, which is a field of the request; give it there"
                    );
                    Err(ApiError::field("chat_template_kwargs", message))
                }
            }
        }
        Some(_) => Err(ApiError::field(
            "chat_template_kwargs",
            "`chat_template_kwargs` is no object; expected variables of the template by name",
        )),
    }
}

/// Returns the name of the function that `tool_choice` names.
fn function_name(choice: &OrderedJson) -> Option<String> {
    let kind = choice.get("type")?.as_str();
    let name = choice.get("function")?.get("name")?.as_str()?;
    (kind == Some("function")).then(|| name.to_owned())
}

/// Renders a conversation.
pub(crate) async fn render(
    state: &Arc<ServerState>,
    request: ChatRequest,
) -> Result<(Arc<ChatFormat>, String), ApiError> {
    let format = state.chat.clone().ok_or_else(|| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "the model has no chat template; use /v1/completions with a prompt",
        )
    })?;
    for (n, message) in request.messages.iter().enumerate() {
        let role = message.get("role");
        if matches!(message, OrderedJson::Map(_)) && role.and_then(OrderedJson::as_str).is_none() {
            let problem = if role.is_none() { "missing" } else { "not a text" };
            let message =
                format!("`messages[{n}].role` is {problem}; expected a text such as `user`");
            return Err(ApiError::field("messages", message));
        }
    }
    let size = request.size();
    let template = Arc::clone(&format);
    let server = Arc::clone(state);
    let rendered = state.rendered(size, move |control: &RenderControl| {
        render_contents(&server, &template, request, control)
    });
    let rendered = rendered.await?;
    let seconds = state.options.template_time.as_secs_f32();
    let text =
        rendered.map_err(|error| ApiError::field("messages", template_error(error, seconds)))?;
    state.check_text(&text, "messages")?;
    Ok((format, text))
}

/// Renders a conversation with the form of contents that the template reads.
fn render_contents(
    server: &ServerState,
    format: &ChatFormat,
    request: ChatRequest,
    control: &RenderControl,
) -> Result<String, TemplateError> {
    let tools = request.tools.is_some();
    let known = &server.contents[usize::from(tools)];
    let form = if let Some(form) = known.get() {
        *form
    } else {
        let form = format.template.content_form(tools, control)?;
        *known.get_or_init(|| form)
    };
    format.template.render_contents(request, form, control)
}

/// Describes a failure of a template without the paths of its files, which are no concern of clients.
fn template_error(error: TemplateError, seconds: f32) -> String {
    match error {
        TemplateError::Request(fault) => fault.to_string(),
        TemplateError::Raised { message, .. } => {
            format!("the chat template refuses the conversation: {message}")
        }
        TemplateError::Run { why, .. } => {
            format!("the chat template cannot render the conversation: {why}")
        }
        TemplateError::Limit { most: limit, unit, .. } => {
            format!("the chat template takes more than {limit} {unit} for the conversation")
        }
        TemplateError::Late { .. } => {
            format!("the chat template takes more than {seconds} seconds for the conversation")
        }
        TemplateError::NotContinued { .. } => {
            "the chat template changes the last message, so it cannot be continued".to_owned()
        }
        _ => "the chat template of the model is not valid".to_owned(),
    }
}

/// Returns the parser of an answer.
fn parser(
    format: Option<&'static Format>,
    prompt: &str,
    tools: Option<&[CallableTool]>,
    streamed: bool,
) -> Option<OutputParser> {
    let format = format?;
    let inside = format.reasons_after(prompt);
    let schemas = tools.unwrap_or_default().iter();
    Some(format.parser(&ParserOptions {
        tools: schemas.map(|tool| (tool.name.clone(), tool.parameters.clone())).collect(),
        reasoning: if inside { ReasoningMode::Inside } else { ReasoningMode::Marked },
        calls: tools.is_some(),
        // Clients of streams show the progress of a call. A whole answer has no malformed call.
        whole_calls: !streamed,
        ..ParserOptions::default()
    }))
}

/// Returns the tools that a forced call may name.
fn callable(
    tools: Option<&[CallableTool]>,
    chosen: &ToolUse,
) -> Result<Vec<CallableTool>, ApiError> {
    let tools = tools.unwrap_or_default();
    let ToolUse::Named(name) = chosen else { return Ok(tools.to_vec()) };
    let named: Vec<CallableTool> =
        tools.iter().filter(|tool| tool.name == *name).cloned().collect();
    if named.is_empty() {
        let message = format!("`tool_choice` names `{name}`, which is not among `tools`");
        return Err(ApiError::field("tool_choice", message));
    }
    Ok(named)
}

/// Returns the reasoning that may come before a constrained answer.
fn reasoning_prefix(format: Option<&Format>, prompt: &str, continues: bool) -> ReasoningPrefix {
    match format {
        Some(format) if format.reasons_after(prompt) => ReasoningPrefix::Open,
        // A prompt behind the reasoning says that the model is not to reason.
        Some(format) if !continues && !format.reasoned_before(prompt) => ReasoningPrefix::Optional,
        _ => ReasoningPrefix::Absent,
    }
}

/// Answers a request.
pub(crate) async fn chat_completions(
    State(state): State<Arc<ServerState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let guard = state.begin()?;
    let fields: ChatFields = {
        let neutral = [&NEUTRAL[..], &NEUTRAL_OF_CHATS].concat();
        body::read(&state, request, &neutral).await?
    };
    let streamed = fields.stream == Some(true);
    let (mut answer, mut events) = start(&state, &guard, fields).await?;
    if streamed {
        return Ok(sse::respond(answer, events, guard, state));
    }
    sse::complete(&mut answer, &mut events, &guard).await?;
    Ok(Json(answer.whole()).into_response())
}

/// Hands the sequences of a request to the engine. Returns the answer without its text, and the events that make it.
pub(crate) async fn start(
    state: &Arc<ServerState>,
    guard: &RequestGuard,
    mut fields: ChatFields,
) -> Result<(ChatAnswer, mpsc::Receiver<SequenceMessage>), ApiError> {
    state.check_model(fields.model.as_ref())?;
    fields.refuse()?;
    let sampling = fields.sampling(state)?;
    let streamed = fields.stream == Some(true);
    let usage = fields::stream_usage(fields.stream_options.as_ref(), streamed)?;
    let (tools, chosen) = fields.tools()?;
    let schemas = tools.as_deref().map(schemas).transpose()?;
    let several =
        fields.parallel_tool_calls.unwrap_or(true) && !matches!(chosen, ToolUse::Named(_));
    let calls = RequestTools { schemas, chosen, several };
    let rule = rules::rule(fields.response_format.take(), fields.structured_outputs.take())?;
    let request = fields.conversation(tools)?;
    let continues = request.continue_final_message;
    let (format, text) = guard.within(render(state, request)).await?;
    let special = fields.add_special_tokens.unwrap_or(false);
    let prompt = guard.within(state.encode(vec![text.clone()], special)).await?;
    let prompt: Arc<[u32]> = prompt.concat().into();
    let (limit, top) = fields.limits(state, &prompt, sampling.count)?;
    let prefix = reasoning_prefix(format.format, &text, continues);
    let mut reader = format.format;
    let mut constraint = None;
    let forced = calls.chosen != ToolUse::Free;
    if forced {
        let compiled = calls.constraint(state, format.format, prefix);
        let (calls_format, compiled) = guard.within(compiled).await?;
        (reader, constraint) = (Some(calls_format), Some(Arc::new(compiled)));
    } else if let Some((rule, field)) = rule {
        let compiled = guard.within(state.constrain(rule, field, prefix, format.format)).await?;
        constraint = Some(Arc::new(compiled));
    }
    let plan = ChatPlan {
        text,
        prompt,
        limit,
        top,
        sampling,
        calls,
        reader,
        constraint,
        // Marks of calls may be special tokens.
        plain: fields.skip_special_tokens.unwrap_or(reader.is_none()) && !forced,
        streamed,
        salt: fields.cache_salt.take().unwrap_or_default().into(),
    };
    let (sender, events) = mpsc::channel((16 * plan.sampling.count).min(4096));
    let (choices, sequences) = plan.sequences(state, guard, &sender);
    drop(sender);
    let answer = ChatAnswer {
        id: state.id("chatcmpl"),
        created: now(),
        top,
        token_ids: fields.return_token_ids.unwrap_or(false),
        usage,
        ends: plan.sampling.ends,
        prompt: plan.prompt,
        choices,
        state: Arc::clone(state),
    };
    state.submit(sequences)?;
    Ok((answer, events))
}
