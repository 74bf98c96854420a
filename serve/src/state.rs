//! State that all requests share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use chat::{ConstraintCompiler, ConstraintError, ContentForm, RenderControl};
use tokio::sync::mpsc::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use crate::error::ApiError;
use crate::memory::SlotMemory;
use crate::metrics::Metrics;
use crate::queue::{QueueRefusal, SequenceQueue};
use crate::sequence::{CancelFlag, SequenceMessage, SequenceRequest};
use crate::tokens::TokenTexts;
use crate::{ChatFormat, ServeOptions, ServedTokenizer};

/// Most bytes of a text for each token; the longest tokens of vocabularies are runs of spaces.
const TOKEN: usize = 1024;
/// Most bytes of a text that is short. Work on longer texts is done one at a time: the tokenizer takes about
/// 100 bytes of memory and a microsecond for each token.
const SHORT: usize = 64 << 10;
/// Unit of memory that is reserved for bodies and long texts, in bytes.
pub(crate) const UNIT: usize = 64 << 10;
/// Time after a stop for a request that is on its way, and for the rest of its body.
pub(crate) const LAST_REQUEST: Duration = Duration::from_millis(500);

/// State that all requests share.
pub(crate) struct ServerState {
    pub(crate) options: ServeOptions,
    pub(crate) name: String,
    pub(crate) vocab: usize,
    /// Number of tokens that the model reads; not below `vocab`.
    pub(crate) input_vocab: usize,
    /// Maximum length of a sequence.
    pub(crate) context: usize,
    /// Maximum number of positions of all slots.
    pub(crate) positions: usize,
    pub(crate) memory: SlotMemory,
    pub(crate) dtype: &'static str,
    pub(crate) arithmetic: &'static str,
    pub(crate) codec: Option<Arc<dyn ServedTokenizer>>,
    pub(crate) chat: Option<Arc<ChatFormat>>,
    pub(crate) ends: Vec<u32>,
    pub(crate) texts: TokenTexts,
    pub(crate) queue: Arc<SequenceQueue>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: watch::Sender<bool>,
    /// True once answers that are not complete have to end.
    pub(crate) cut: watch::Sender<bool>,
    /// Forms of contents that the template reads, without and with tools.
    pub(crate) contents: [OnceLock<ContentForm>; 2],
    /// Work on a long text; short ones do not wait for it.
    pub(crate) long_work: Arc<Semaphore>,
    /// Memory of long texts that are worked on or wait.
    pub(crate) long_texts: Semaphore,
    /// Memory of request bodies.
    pub(crate) bodies: Semaphore,
    /// Renderings of chat templates, which wait for each other alone.
    pub(crate) rendering: Arc<Semaphore>,
    /// Compiler of rules for outputs, once a request needs it.
    pub(crate) compiler: OnceLock<Result<Arc<ConstraintCompiler>, ConstraintError>>,
    /// Rules that are compiled at a time; other threads tokenize and write answers.
    pub(crate) compiling: Semaphore,
    pub(crate) created: u64,
    pub(crate) count: AtomicU64,
}

impl ServerState {
    /// Begins a request.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<RequestGuard, ApiError> {
        if *self.stopping.borrow() {
            return Err(ApiError::stopping());
        }
        Ok(RequestGuard::new(Arc::clone(self)))
    }

    /// Hands sequences to the engine.
    pub(crate) fn submit(&self, sequences: Vec<SequenceRequest>) -> Result<(), ApiError> {
        let count = sequences.len();
        self.queue.submit(sequences).map_err(|refusal| match refusal {
            QueueRefusal::Closed => ApiError::stopping(),
            QueueRefusal::Never(limit) => ApiError::coded(
                StatusCode::BAD_REQUEST,
                "invalid_value",
                format!(
                    "the request has {count} sequences; this server takes at most {limit} at a time: \
                     send fewer prompts, or a lower `n`"
                ),
            ),
            QueueRefusal::Full(waiting) => ApiError::coded(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                format!(
                    "{waiting} sequences wait, and {count} more are above the limit of {}; try again later",
                    self.options.queue
                ),
            ),
        })
    }

    /// Checks the name of the model in a request.
    pub(crate) fn check_model(&self, name: Option<&String>) -> Result<(), ApiError> {
        match name {
            Some(name) if *name != self.name => Err(ApiError {
                param: Some("model".to_owned()),
                ..ApiError::coded(
                    StatusCode::NOT_FOUND,
                    "model_not_found",
                    format!("the model `{name}` is not served here; expected `{}`", self.name),
                )
            }),
            _ => Ok(()),
        }
    }

    /// Returns the tokens of texts, without holding up other requests.
    pub(crate) async fn encode(
        &self,
        texts: Vec<String>,
        special: bool,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        let codec = Arc::clone(self.codec.as_ref().ok_or_else(|| {
            ApiError::field("prompt", "the model has no tokenizer; give the prompt as token ids")
        })?);
        let bytes = texts.iter().map(String::len).sum();
        // A client that goes away drops this future, and with it the texts that are not begun.
        let gone = CancelOnDrop::default();
        let cancel = gone.0.clone();
        let encoded = self
            .work(bytes, move || {
                let texts = texts.iter().take_while(|_| !cancel.is_set());
                texts.map(|text| codec.encode(text, special)).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        drop(gone);
        encoded.map_err(|error| {
            ApiError::field("prompt", format!("the text cannot be tokenized: {error}"))
        })
    }

    /// Runs work on a text of so many bytes, without holding up other requests.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let memory = self.memory_of(bytes)?;
        let permit = match memory {
            Some(_) => Arc::clone(&self.long_work).acquire_owned().await.ok(),
            None => None,
        };
        self.on_thread(permit, work).await
    }

    /// Renders a conversation of so many bytes. Renderings wait for each other, and no other work waits for them. A
    /// client that goes away ends its rendering.
    pub(crate) async fn rendered<T: Send + 'static>(
        &self,
        bytes: usize,
        render: impl FnOnce(&RenderControl) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let _memory = self.memory_of(bytes)?;
        let permit = Arc::clone(&self.rendering).acquire_owned().await.ok();
        let control = RenderControl::default();
        let mut unread = UnreadRendering { control: control.clone(), done: false };
        let metrics = Arc::clone(&self.metrics);
        let time = self.options.template_time;
        let rendered = self.on_thread(permit, move || {
            metrics.renderings.add(1);
            // Waiting for a thread is no time of the template.
            let control = control.with_deadline(Instant::now() + time);
            let rendered = render(&control);
            metrics.renderings.subtract(1);
            if control.is_cancelled() {
                metrics.cancelled_renderings.add(1);
            }
            rendered
        });
        let rendered = rendered.await;
        unread.done = true;
        rendered
    }

    /// Reserves memory for a text that is not short.
    fn memory_of(&self, bytes: usize) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        if bytes <= SHORT {
            return Ok(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let memory = self.long_texts.try_acquire_many(units).map_err(|_| {
            ApiError::coded(
                StatusCode::SERVICE_UNAVAILABLE,
                "texts_full",
                format!(
                    "too many texts of more than {} KiB wait at a time; try again later",
                    SHORT >> 10
                ),
            )
        })?;
        Ok(Some(memory))
    }

    /// Runs work on a thread of its own; the permit ends with it.
    async fn on_thread<T: Send + 'static>(
        &self,
        permit: Option<OwnedSemaphorePermit>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let work = tokio::task::spawn_blocking(move || {
            let output = work();
            // The permit ends with the work, also if nobody waits for it any more.
            drop(permit);
            output
        });
        work.await.map_err(|_| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the work on the text failed")
        })
    }

    /// Refuses a text that has more tokens than a sequence, before it is tokenized; `name` is its field.
    pub(crate) fn check_text(&self, text: &str, name: &str) -> Result<(), ApiError> {
        if text.len() <= self.context.saturating_mul(TOKEN) {
            return Ok(());
        }
        let message = format!(
            "the prompt has {} bytes; this server handles {} tokens in all",
            text.len(),
            self.context
        );
        Err(ApiError { code: Some("context_length_exceeded"), ..ApiError::field(name, message) })
    }

    /// Refuses an answer with too many log-probabilities; `name` is the field that asks for them.
    pub(crate) fn check_entries(&self, entries: usize, name: &str) -> Result<(), ApiError> {
        if entries <= self.options.logprobs {
            return Ok(());
        }
        let message = format!(
            "the answer would have {entries} log-probabilities; expected at most {}: \
             ask for fewer at a position, or for fewer prompts or tokens",
            self.options.logprobs
        );
        Err(ApiError::field(name, message))
    }

    /// Checks the tokens of a prompt and the number of tokens to add.
    pub(crate) fn check_prompt(&self, prompt: &[u32], added: usize) -> Result<(), ApiError> {
        if prompt.is_empty() {
            let message = "the prompt has no tokens; expected at least one";
            return Err(ApiError::field("prompt", message));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= self.input_vocab) {
            let vocab = self.input_vocab;
            let message = format!("the prompt has the token {id}; expected ids below {vocab}");
            return Err(ApiError::field("prompt", message));
        }
        let length = prompt.len();
        if length.saturating_add(added) > self.context {
            let message = format!(
                "the prompt has {length} tokens, and {added} are to be added; this server handles {} in all",
                self.context
            );
            let name = if length > self.context { "prompt" } else { "max_tokens" };
            return Err(ApiError {
                code: Some("context_length_exceeded"),
                ..ApiError::field(name, message)
            });
        }
        Ok(())
    }

    /// Returns a new id of an answer.
    pub(crate) fn id(&self, prefix: &str) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:x}-{count:x}", self.created)
    }
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A request without a complete answer.
pub(crate) struct RequestGuard {
    state: Arc<ServerState>,
    pub(crate) begun: Instant,
}

impl RequestGuard {
    fn new(state: Arc<ServerState>) -> Self {
        state.metrics.in_flight.add(1);
        Self { state, begun: Instant::now() }
    }

    /// Returns the time at which the answer has to be complete.
    pub(crate) fn deadline(&self) -> Instant {
        self.begun + self.state.options.request_time
    }

    /// Waits for a part of the work, at most until the request is too late or the server ends.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let mut cut = self.state.cut.subscribe();
        tokio::select! {
            biased;
            done = work => done,
            _ = cut.wait_for(|cut| *cut) => Err(ApiError::cut_off()),
            () = tokio::time::sleep_until(self.deadline().into()) => Err(ApiError::too_late()),
        }
    }

    /// Waits for the next event of the request.
    pub(crate) async fn next(
        &self,
        events: &mut Receiver<SequenceMessage>,
    ) -> Result<SequenceMessage, ApiError> {
        let next = async {
            events.recv().await.ok_or_else(|| {
                if *self.state.cut.borrow() {
                    ApiError::cut_off()
                } else if Instant::now() >= self.deadline() {
                    // The engine drops what is too late; a full channel had no room for the reason.
                    ApiError::too_late()
                } else {
                    ApiError::engine_gone()
                }
            })
        };
        self.within(next).await
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.state.metrics.in_flight.subtract(1);
        self.state.metrics.request_time.observe(self.begun.elapsed());
    }
}

/// Ends a rendering when it is dropped before the text is there.
struct UnreadRendering {
    control: RenderControl,
    done: bool,
}

impl Drop for UnreadRendering {
    fn drop(&mut self) {
        if !self.done {
            self.control.cancel();
        }
    }
}

/// Cancels work when it is dropped.
#[derive(Debug, Default)]
struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.set();
    }
}
