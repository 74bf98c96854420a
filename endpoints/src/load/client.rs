//! Sends the requests of a load test, one thread for each request in flight.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::CompletionsApi;
use super::answer::{ChunkRule, RequestRecord};
use super::arrivals::ArrivalProcess;
use super::exchange::{AnswerBudget, exchange};
use super::prompt_file::{LoadPrompt, PromptContent};
use crate::error::shown;
use crate::http::ServerConnection;
use crate::{EndpointOptions, Error};

/// Maximum number of requests in flight: each has a thread and a connection.
pub const MOST_CONNECTIONS: usize = 1024;
/// Stack of a thread. Only virtual memory is reserved.
const STACK: usize = 1 << 20;
/// Maximum bytes of all answers in flight.
const MOST_HELD: u64 = 2 << 30;
/// Longest sleep before the stop of a run is noticed.
const NAP: Duration = Duration::from_millis(100);

/// Form of the requests.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The endpoint.
    pub api: CompletionsApi,
    /// True to ask for as many tokens as allowed, past the end of the text.
    pub ignore_eos: bool,
    /// Fields of the body that are added or replaced; a field that is `null` is removed.
    pub extra_body: Map<String, Value>,
    /// True to keep the generated text.
    pub keep_text: bool,
    /// Chunks that count as output.
    pub rule: ChunkRule,
}

/// Prompts, and the times at which they are sent.
#[derive(Debug, Clone, Default)]
pub struct LoadPlan {
    /// Prompts, in the order of sending.
    pub prompts: Vec<LoadPrompt>,
    /// Maximum number of generated tokens of prompts that have none of their own.
    pub output: usize,
    /// Arrival times.
    pub arrivals: ArrivalProcess,
    /// Maximum number of requests in flight.
    pub concurrency: Option<usize>,
    /// Seed of the arrival times.
    pub seed: u64,
}

impl LoadPlan {
    /// Returns the number of requests that may be in flight at once.
    fn connections(&self) -> usize {
        let limit = self.concurrency.unwrap_or(MOST_CONNECTIONS);
        limit.min(self.prompts.len()).clamp(1, MOST_CONNECTIONS)
    }
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Requests with an answer or a failure.
    pub finished: usize,
    /// Failures among them.
    pub failed: usize,
    /// Requests without an answer yet.
    pub in_flight: usize,
}

/// Measurements of a run.
#[derive(Debug, Clone, Default)]
pub struct LoadRun {
    /// Finished requests, by the number of their prompt.
    pub records: Vec<RequestRecord>,
    /// Seconds from the beginning to the end of the last request, or to the stop.
    pub duration: f64,
    /// Number of requests that a stop left without an answer.
    pub unfinished: usize,
    /// Number of requests that a stop left unsent.
    pub unsent: usize,
}

/// Client of one endpoint.
#[derive(Debug)]
pub struct LoadClient {
    sender: Arc<RequestSender>,
    vocab: Option<u64>,
}

#[derive(Debug)]
struct RequestSender {
    http: ServerConnection,
    model: String,
    options: LoadOptions,
    budget: AnswerBudget,
}

/// State that the threads of a run share.
struct RunState {
    sender: Arc<RequestSender>,
    plan: LoadPlan,
    due: Vec<Duration>,
    begun: OnceLock<Instant>,
    next: AtomicUsize,
    in_flight: AtomicUsize,
    stop: AtomicBool,
    records: Mutex<Vec<RequestRecord>>,
    changed: Condvar,
}

/// Returns the entry of the requested model in a server's list of models, or the first without a request.
fn model_entry(listed: &Value, requested: Option<&str>) -> Option<Value> {
    let mut models = listed.get("data")?.as_array()?.iter();
    let entry = models.find(|entry| {
        requested.is_none_or(|name| entry.get("id").and_then(Value::as_str) == Some(name))
    });
    entry.cloned()
}

impl LoadClient {
    /// Connects to the server at `url`. Its list of models gives the served name, unless
    /// `endpoint.model` is set.
    pub fn connect(
        url: &str,
        endpoint: &EndpointOptions,
        options: LoadOptions,
    ) -> Result<Self, Error> {
        let http = ServerConnection::for_load(url, endpoint)?;
        let listed = http.get("/v1/models").and_then(|answer| answer.report());
        let (name, vocab) = match (listed, &endpoint.model) {
            (Ok(listed), requested) => {
                let entry = model_entry(&listed, requested.as_deref()).unwrap_or(Value::Null);
                let name = entry.get("id").and_then(Value::as_str).map(str::to_owned);
                // llama-server describes its models in `meta`.
                let vocab = entry.pointer("/meta/n_vocab").and_then(Value::as_u64);
                (requested.clone().or(name), vocab)
            }
            (Err(_), Some(requested)) => (Some(requested.clone()), None),
            (Err(error), None) => return Err(error),
        };
        let model = name.ok_or_else(|| Error::Answer {
            url: format!("{}/v1/models", http.base),
            found: "it lists no model".to_owned(),
            help: "give the served name with the option `model`",
        })?;
        let budget = AnswerBudget {
            one: endpoint.most_bytes,
            all: MOST_HELD.max(endpoint.most_bytes),
            held: AtomicU64::new(0),
        };
        Ok(Self { sender: Arc::new(RequestSender { http, model, options, budget }), vocab })
    }

    /// Returns the served name of the model, safe to show.
    pub fn model(&self) -> String {
        shown(&self.sender.model)
    }

    /// Returns the vocabulary size that the server reports.
    pub fn vocab(&self) -> Option<u64> {
        self.vocab
    }

    /// Sends the requests of a plan. `watch` is called several times a second; the run stops when the
    /// answer is `false`, and requests in flight are then given up.
    pub fn run(&self, plan: LoadPlan, watch: &mut dyn FnMut(LoadProgress) -> bool) -> LoadRun {
        let count = plan.prompts.len();
        if count == 0 {
            return LoadRun::default();
        }
        let connections = plan.connections();
        let state = Arc::new(RunState {
            sender: Arc::clone(&self.sender),
            due: plan.arrivals.times(count, plan.seed),
            plan,
            begun: OnceLock::new(),
            next: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            records: Mutex::new(Vec::new()),
            changed: Condvar::new(),
        });
        let mut threads = 0;
        for _ in 0..connections {
            let state = Arc::clone(&state);
            let builder = thread::Builder::new().name("load".to_owned()).stack_size(STACK);
            match builder.spawn(move || state.work()) {
                Ok(_) => threads += 1,
                Err(_) => break,
            }
        }
        let begun = *state.begun.get_or_init(Instant::now);
        if threads == 0 {
            state.work();
        }
        state.wait(begun, count, watch)
    }
}

impl RunState {
    /// Waits for all records, or for a stop.
    fn wait(
        &self,
        begun: Instant,
        count: usize,
        watch: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> LoadRun {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let finished = records.len();
            let failed = records.iter().filter(|record| record.failure.is_some()).count();
            if finished == count {
                break;
            }
            drop(records);
            let in_flight = self.in_flight.load(Ordering::Relaxed);
            if !watch(LoadProgress { finished, failed, in_flight }) {
                self.stop.store(true, Ordering::Relaxed);
                records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
                break;
            }
            let until = Instant::now() + NAP;
            records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            // The watcher is called at its own pace, however many requests finish.
            while records.len() < count
                && let Some(left) = until.checked_duration_since(Instant::now())
            {
                let woken = self.changed.wait_timeout(records, left);
                records = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let mut records = std::mem::take(&mut *records);
        records.sort_by_key(|record| record.index);
        let stopped = records.len() < count;
        let ends = records.iter().map(|record| record.ended);
        let duration =
            if stopped { begun.elapsed().as_secs_f64() } else { ends.fold(0.0, f64::max) };
        let unfinished = self.in_flight.load(Ordering::Relaxed).min(count - records.len());
        let unsent = count - records.len() - unfinished;
        LoadRun { records, duration, unfinished, unsent }
    }

    /// Sends requests until none is left.
    fn work(&self) {
        let begun = *self.begun.wait();
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = self.plan.prompts.get(index) else { return };
            let limit = prompt.output.unwrap_or(self.plan.output).max(1);
            // The body is written before the request is due, so that its size is no delay.
            let body = self.sender.body(&prompt.content, limit);
            let due = self.due[index];
            while let Some(left) = due.checked_sub(begun.elapsed())
                && !left.is_zero()
                && !self.stop.load(Ordering::Relaxed)
            {
                thread::sleep(left.min(NAP));
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            let mut record = self.sender.send(&body, limit, begun);
            record.index = index;
            record.due = due.as_secs_f64();
            record.prompt_length = prompt.tokens;
            let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            records.push(record);
            self.changed.notify_one();
        }
    }
}

impl RequestSender {
    fn body(&self, content: &PromptContent, limit: usize) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.model));
        match (self.options.api, content) {
            (CompletionsApi::Completions, PromptContent::Ids(ids)) => {
                body.insert("prompt".to_owned(), json!(ids));
            }
            (CompletionsApi::Completions, PromptContent::Text(text)) => {
                body.insert("prompt".to_owned(), json!(text));
            }
            (_, PromptContent::Messages(messages)) => {
                body.insert("messages".to_owned(), json!(messages));
            }
            (CompletionsApi::Chat, PromptContent::Text(text)) => {
                body.insert("messages".to_owned(), json!([{ "role": "user", "content": text }]));
            }
            (CompletionsApi::Chat, PromptContent::Ids(ids)) => {
                body.insert("messages".to_owned(), json!([{ "role": "user", "content": ids }]));
            }
        }
        let key = match self.options.api {
            CompletionsApi::Completions => "max_tokens",
            CompletionsApi::Chat => "max_completion_tokens",
        };
        body.insert(key.to_owned(), json!(limit));
        body.insert("temperature".to_owned(), json!(0.0));
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        if self.options.ignore_eos {
            body.insert("ignore_eos".to_owned(), json!(true));
        }
        for (key, value) in &self.options.extra_body {
            if value.is_null() {
                body.remove(key);
            } else {
                body.insert(key.clone(), value.clone());
            }
        }
        Value::Object(body).to_string().into_bytes()
    }

    fn send(&self, body: &[u8], limit: usize, begun: Instant) -> RequestRecord {
        let path = self.options.api.path();
        let (sent, stream, result) = exchange(&self.http, path, body, &self.budget);
        let ended = begun.elapsed().as_secs_f64();
        let sent = sent.saturating_duration_since(begun).as_secs_f64();
        let mut record = RequestRecord { sent, ended, ..RequestRecord::default() };
        let result = result
            .and_then(|()| record.read(&stream, limit, self.options.keep_text, self.options.rule));
        if let Err(failure) = result {
            record = RequestRecord {
                sent,
                ended,
                latency: ended - sent,
                failure: Some(failure),
                ..RequestRecord::default()
            };
        }
        record
    }
}
