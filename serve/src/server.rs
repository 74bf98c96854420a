//! Starting and stopping a server.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use crate::memory::SlotMemory;
use crate::metrics::Metrics;
use crate::queue::SequenceQueue;
use crate::scheduler::{Scheduler, SchedulerLimits};
use crate::state::{ServerState, now};
use crate::tokens::TokenTexts;
use crate::{ServeError, ServeOptions, ServedModel, body, http};

/// Longest sequence of a model that names no limit.
const CONTEXT: usize = 32768;
/// Memory for slots where the free memory is not known, in bytes.
const MEMORY: u64 = 4 << 30;
/// Threads that tokenize and write answers.
const BLOCKING: usize = 6;
/// Renderings of chat templates at a time. The other threads tokenize and write answers, so requests without a template
/// do not wait for one that takes long.
const RENDERINGS: usize = 2;
/// Most slots, and most kept ones.
const SLOTS: usize = 4096;
/// Stack of the engine's thread. Derivatives of long regular expressions recurse over their length.
const STACK: usize = 64 << 20;

/// A server that listens.
pub struct ModelServer {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    state: Arc<ServerState>,
    scheduler: Scheduler,
    abort: Arc<AtomicBool>,
}

impl std::fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelServer").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Stops a server from another thread.
#[derive(Debug, Clone)]
pub struct StopHandle(watch::Sender<bool>);

impl StopHandle {
    /// Refuses new requests from now on; running ones get the time that the options give them.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// Outcome of a server that was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServeOutcome {
    /// Number of connections that did not end in time.
    pub cut: usize,
}

impl ModelServer {
    /// Listens, without answering yet.
    pub fn bind(model: ServedModel, options: ServeOptions) -> Result<Self, ServeError> {
        let counts = [
            ("slots", options.slots),
            ("prefill chunk", options.prefill_chunk),
            ("queue", options.queue),
            ("prompts", options.prompts),
            ("connections", options.connections),
            ("body", options.body),
            ("context", options.context.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(ServeError::Zero { name });
        }
        let slots = [("slots", options.slots), ("kept slots", options.kept)];
        if let Some((name, count)) = slots.into_iter().find(|(_, count)| *count > SLOTS) {
            return Err(ServeError::Above { name, found: count, most: SLOTS });
        }
        if !model.session.features().steps {
            return Err(ServeError::Steps);
        }
        let memory = SlotMemory::of(&*model.session);
        // A model that declares no length has no limit but the memory.
        let context = match (options.context, model.session.model().context) {
            (Some(context), Some(longest)) => context.min(longest),
            (Some(context), None) => context,
            (None, longest) => longest.unwrap_or(CONTEXT),
        };
        let positions = positions(&model, &options, memory, context)?;
        let context = context.min(positions);
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(BLOCKING)
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(ServeError::Threads)?;
        let address = SocketAddr::new(options.host, options.port);
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .map_err(|why| ServeError::Listen { address, why })?;
        let address = listener.local_addr().map_err(|why| ServeError::Listen { address, why })?;
        let vocab = model.session.model().vocab;
        let input_vocab = model.session.model().input_vocab;
        let queue = Arc::new(SequenceQueue::new(options.queue, options.slots));
        let metrics = Arc::new(Metrics::default());
        let limits = SchedulerLimits {
            slots: options.slots,
            prefill_chunk: options.prefill_chunk,
            positions,
            kept: options.kept,
        };
        let state = ServerState {
            name: model.name,
            vocab,
            input_vocab,
            context,
            positions,
            memory,
            dtype: model.session.dtype().name(),
            arithmetic: model.arithmetic,
            texts: TokenTexts::new(model.codec.clone(), vocab),
            codec: model.codec,
            chat: model.chat.map(Arc::new),
            ends: model.ends,
            queue: Arc::clone(&queue),
            metrics: Arc::clone(&metrics),
            stopping: watch::Sender::new(false),
            cut: watch::Sender::new(false),
            contents: [const { OnceLock::new() }; 2],
            long_work: Arc::new(Semaphore::new(1)),
            long_texts: Semaphore::new(body::units(options.body)),
            bodies: Semaphore::new(body::units(options.body)),
            rendering: Arc::new(Semaphore::new(RENDERINGS)),
            compiler: OnceLock::new(),
            compiling: Semaphore::new(BLOCKING / 2),
            created: now(),
            count: AtomicU64::new(0),
            options,
        };
        let abort = Arc::new(AtomicBool::new(false));
        let scheduler = Scheduler::new(model.session, queue, metrics, limits, Arc::clone(&abort));
        Ok(Self { runtime, listener, address, state: Arc::new(state), scheduler, abort })
    }

    /// Returns the address, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the maximum length of a sequence.
    pub fn context(&self) -> usize {
        self.state.context
    }

    /// Returns the maximum number of positions of all slots, and their memory in bytes.
    pub fn cache(&self) -> (usize, u64) {
        let slots = self.state.options.slots.saturating_add(self.state.options.kept);
        (self.state.positions, self.state.memory.bytes(self.state.positions, slots))
    }

    /// Returns a handle that stops the server.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.state.stopping.clone())
    }

    /// Answers requests until the server is stopped.
    pub fn run(self) -> Result<ServeOutcome, ServeError> {
        let Self { runtime, listener, state, scheduler, abort, .. } = self;
        let queue = Arc::clone(&state.queue);
        let ended = state.stopping.clone();
        let thread = thread::Builder::new()
            .name("engine".to_owned())
            .stack_size(STACK)
            .spawn(move || run_engine(scheduler, &queue, &ended));
        let thread = thread.map_err(ServeError::Threads)?;
        let cut = runtime.block_on(http::serve(listener, Arc::clone(&state)));
        runtime.shutdown_timeout(Duration::from_secs(1));
        state.queue.close();
        if cut > 0 {
            abort.store(true, Ordering::Relaxed);
        }
        match thread.join() {
            Ok(Ok(())) => Ok(ServeOutcome { cut }),
            Ok(Err(words)) => Err(ServeError::Engine(words)),
            Err(_) => Err(ServeError::Engine("it panicked".to_owned())),
        }
    }
}

/// Serves a model until it is stopped. `started` gets the server once it listens; an error of it ends the call.
///
/// ```
/// use std::{path::Path, sync::Arc};
///
/// use engine::{Engine as _, ModelSource, NativeEngine, SessionOptions};
/// use onboard_serve::{ServeError, ServeOptions, ServedModel};
/// use registry::{config::Config, library::Library, ops::OpSet, resolve::resolve};
///
/// let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/llama_256");
/// let config = Config::read(&dir.join("config.json")).unwrap();
/// let library = Library::builtin();
/// let spec = library.load(library.find(&config)[0], &[]).unwrap();
/// let (model, _) = resolve(&spec, &config, &OpSet::builtin()).unwrap();
/// let source = ModelSource { model: Arc::new(model), dir: &dir };
/// let session = NativeEngine::new().open(&source, &SessionOptions::default()).unwrap();
/// let options = ServeOptions { port: 0, ..ServeOptions::default() };
/// let served = onboard_serve::run(ServedModel::new("mine", session), options, |server| {
///     server.stop_handle().stop();
///     Ok::<(), ServeError>(())
/// });
/// assert_eq!(served.unwrap().cut, 0);
/// ```
pub fn run<E: From<ServeError>>(
    model: ServedModel,
    options: ServeOptions,
    started: impl FnOnce(&ModelServer) -> Result<(), E>,
) -> Result<ServeOutcome, E> {
    let server = ModelServer::bind(model, options)?;
    started(&server)?;
    Ok(server.run()?)
}

/// Runs the scheduler to its end, then refuses new requests. Returns the words of a panic.
fn run_engine(
    scheduler: Scheduler,
    queue: &SequenceQueue,
    ended: &watch::Sender<bool>,
) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| scheduler.run()));
    queue.abort();
    ended.send_replace(true);
    result.map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        words.or_else(|| panic.downcast_ref().copied()).unwrap_or("it panicked").to_owned()
    })
}

/// Returns the maximum number of positions of all slots.
fn positions(
    model: &ServedModel,
    options: &ServeOptions,
    memory: SlotMemory,
    context: usize,
) -> Result<usize, ServeError> {
    let slots = options.slots.saturating_add(options.kept);
    let largest = slots.saturating_mul(context);
    let bytes = model.memory.unwrap_or(MEMORY) / 4;
    let tokens =
        options.cache_tokens.unwrap_or_else(|| memory.positions(bytes, slots)).min(largest);
    if tokens < context.min(1024) {
        return Err(ServeError::Memory { tokens, least: context.min(1024) });
    }
    Ok(tokens)
}
