//! A thread that owns llama.cpp's model and its context.
//!
//! A context borrows its model, and a session must own both. On a thread of their own they are
//! two local variables; the session sends closures.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;

use super::{backend, load, log};
use crate::Error;

type ContextJob = Box<dyn for<'a> FnOnce(&mut LlamaContext<'a>) + Send>;

/// The facts that llama.cpp reports about a model.
pub(super) struct LlamaFacts {
    pub(super) vocab: usize,
    /// True if some layers carry a state instead of a cache of positions.
    pub(super) recurrent: bool,
}

/// The other end of the thread.
pub(super) struct Worker {
    jobs: Option<Sender<ContextJob>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Loads a file on a new thread.
    pub(super) fn start(
        path: PathBuf,
        params: LlamaContextParams,
    ) -> Result<(Self, LlamaFacts), Error> {
        let (jobs, inbox) = channel::<ContextJob>();
        let (ready, opened) = channel();
        let thread = std::thread::Builder::new()
            .name("llama.cpp".to_owned())
            .spawn(move || run(&path, params, &inbox, &ready))
            .map_err(|e| Error::Threads(e.to_string()))?;
        let worker = Self { jobs: Some(jobs), thread: Some(thread) };
        let opened = opened.recv().map_err(|_| worker_gone())??;
        Ok((worker, opened))
    }

    /// Runs `work` on the thread and waits for what it gives.
    pub(super) fn call<T: Send + 'static>(
        &self,
        work: impl for<'a> FnOnce(&mut LlamaContext<'a>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = channel();
        let job: ContextJob = Box::new(move |context| {
            // The session waits, unless it is gone and nobody wants the answer.
            answer.send(work(context)).ok();
        });
        self.jobs.as_ref().ok_or_else(worker_gone)?.send(job).map_err(|_| worker_gone())?;
        answered.recv().map_err(|_| worker_gone())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The thread ends when no more jobs can come.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn worker_gone() -> Error {
    Error::Other("llama.cpp's thread ended early; open the file again".to_owned())
}

fn run(
    path: &Path,
    params: LlamaContextParams,
    inbox: &Receiver<ContextJob>,
    ready: &Sender<Result<LlamaFacts, Error>>,
) {
    let opened = backend().and_then(|backend| Ok((backend, load(path)?)));
    let (backend, model) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            ready.send(Err(error)).ok();
            return;
        }
    };
    let (context, complaints) = log::listen(|| model.new_context(backend, params));
    let mut context = match context {
        Ok(context) => context,
        Err(error) => {
            let message = format!("llama.cpp cannot run `{}`: {error}{complaints}", path.display());
            ready.send(Err(Error::Other(message))).ok();
            return;
        }
    };
    let vocab = usize::try_from(model.n_vocab()).unwrap_or(0);
    ready.send(Ok(LlamaFacts { vocab, recurrent: model.is_recurrent() || model.is_hybrid() })).ok();
    for job in inbox {
        job(&mut context);
    }
}
