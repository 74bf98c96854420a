//! Inference servers on this machine, which respond with the native engine's values and fail on request.

mod forms;
mod http;
mod model;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use registry::model::Model;

use model::Running;
pub(crate) use model::{Products, Twist};

/// HTTP API of a stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Vllm,
    Sglang,
    LlamaServer,
    /// Completions with `echo`, ids of generated tokens as `token_id:N`.
    OpenAi,
    /// Completions with only text.
    Text,
}

/// Fault of the server, independent of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// A request begins with the convolution states of the previous one.
    ConvLeak,
    /// A prompt with a cached prefix loses one token of it.
    StalePrefix,
    /// Simultaneous requests are padded with visible tokens.
    Padding,
    /// The second most likely token is chosen.
    NotGreedy,
    /// A token is put before every prompt, and appears in the echo.
    ExtraBos,
    /// All values of a row are equal.
    Flat,
    /// Log-probabilities are too large by half a nat.
    Sum,
    /// The response never ends.
    Endless,
    /// The response never arrives.
    Slow,
    /// The server ends after this many requests.
    Dies(usize),
    /// Bytes that are not JSON.
    Garbage,
    /// The response is truncated.
    Cut,
    /// `NaN` in place of a number.
    Nan,
    /// A number beyond the range of floats.
    Huge,
    /// An id beyond the vocabulary.
    Beyond,
    /// Rows are missing.
    FewRows,
    /// This status, for all addresses except those that identify the server.
    Status(u16),
    /// This status, `.1` times, and then regular responses.
    Busy(u16, usize),
    /// All answers are those of a server that loads its model.
    Loading,
    /// Status of all answers, with a wait of a day.
    Tomorrow(u16),
    /// A list of models of this many bytes, in the shortest values.
    ManyModels(usize),
    /// Redirect to another origin.
    Redirect,
    /// At most this many log-probabilities per token.
    Limit(i64),
    /// Two tokens are generated, whatever the request.
    FewTokens,
    /// Two tokens are generated, only with warm caches.
    FewWarm,
    /// No log-probabilities from the second row of a prompt on.
    OneRow,
    /// There is no room for any prompt.
    NoRoom,
}

struct State {
    form: Form,
    fault: Fault,
    running: Mutex<Running>,
    /// Prompts that the caches contain.
    cached: Mutex<Vec<Vec<u32>>>,
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    seen: Mutex<Vec<String>>,
    key: Option<String>,
}

/// Running server; it ends with the test process.
#[derive(Clone)]
pub(crate) struct StandIn {
    /// Address of the server.
    pub url: String,
    state: Arc<State>,
}

/// Number of requests before the server ends.
const ENDS: usize = usize::MAX;

impl StandIn {
    /// Starts a server of a fixture.
    pub(crate) fn start(form: Form, fixture: &str, twist: Twist, fault: Fault) -> Self {
        Self::with_key(form, fixture, twist, fault, None)
    }

    /// Starts a server that requires a key.
    pub(crate) fn with_key(
        form: Form,
        fixture: &str,
        twist: Twist,
        fault: Fault,
        key: Option<&str>,
    ) -> Self {
        Self::of_model(form, Running::open(fixture, twist), fault, key)
    }

    /// Starts a llama-server of a GGUF file, with an edit of its model.
    pub(crate) fn of_file(
        path: &Path,
        edit: fn(&mut Model),
        products: Products,
        fault: Fault,
    ) -> Self {
        Self::of_model(Form::LlamaServer, Running::of_file(path, edit, products), fault, None)
    }

    fn of_model(form: Form, running: Running, fault: Fault, key: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            form,
            fault,
            running: Mutex::new(running),
            cached: Mutex::new(Vec::new()),
            requests: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            seen: Mutex::new(Vec::new()),
            key: key.map(str::to_owned),
        });
        let shared = Arc::clone(&state);
        let limit = if let Fault::Dies(limit) = fault { limit } else { ENDS };
        thread::spawn(move || {
            // The listener is dropped with the thread, so later connections are refused.
            for stream in listener.incoming().flatten() {
                if shared.requests.fetch_add(1, Ordering::SeqCst) >= limit {
                    return;
                }
                let state = Arc::clone(&shared);
                thread::spawn(move || http::serve(&state, &stream));
            }
        });
        Self { url, state }
    }

    /// Returns request lines with their authorization, oldest first.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.state.seen.lock().unwrap().clone()
    }
}

impl State {
    /// Returns the rows after each token, as this server computes them in its current state.
    fn rows(&self, tokens: &[u32], cache: bool) -> Vec<Vec<f32>> {
        let mut fed = tokens.to_vec();
        if self.fault == Fault::ExtraBos {
            fed.insert(0, 1);
        }
        if self.fault == Fault::Padding {
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(30));
            let company = self.in_flight.load(Ordering::SeqCst) > 1;
            thread::sleep(Duration::from_millis(10));
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            if company {
                fed.splice(0..0, [3, 4]);
            }
        }
        if self.fault == Fault::StalePrefix && cache {
            let mut cached = self.cached.lock().unwrap();
            let warm = cached
                .iter()
                .filter(|c| c.len() > 1 && tokens.len() > c.len() && tokens.starts_with(c));
            if let Some(length) = warm.map(Vec::len).max() {
                fed.remove(length - 1);
            }
            cached.push(tokens.to_vec());
        }
        let mut running = self.running.lock().unwrap();
        let mut rows = running.rows(&fed, self.fault == Fault::ConvLeak);
        // As many rows as tokens were sent, the last ones.
        while rows.len() > tokens.len() {
            rows.remove(0);
        }
        while rows.len() < tokens.len() {
            rows.insert(0, rows[0].clone());
        }
        for row in &mut rows {
            match self.fault {
                Fault::Flat => row.fill(-(running.vocab as f32).ln()),
                Fault::Sum => row.iter_mut().for_each(|x| *x = (*x + 0.5).min(0.0)),
                _ => {}
            }
        }
        rows
    }

    /// Returns tokens that follow a prompt, with their rows.
    fn generate(&self, tokens: &[u32], count: usize, cache: bool) -> Vec<(u32, Vec<f32>)> {
        // The state of the previous conversation is leaked once, at its beginning.
        let mut generated: Vec<(u32, Vec<f32>)> = Vec::new();
        let mut all = tokens.to_vec();
        let begin = self.rows(&all, cache);
        let mut next = begin.last().unwrap().clone();
        for step in 0..count {
            let mut order: Vec<usize> = (0..next.len()).collect();
            order.sort_by(|a, b| next[*b].total_cmp(&next[*a]));
            let chosen = order[usize::from(self.fault == Fault::NotGreedy && step == 2)] as u32;
            generated.push((chosen, next.clone()));
            all.push(chosen);
            let rows = self.running.lock().unwrap().rows(&self.company(&all), false);
            next.clone_from(rows.last().unwrap());
        }
        generated
    }

    /// Returns the tokens as a running sequence of this server has them.
    fn company(&self, tokens: &[u32]) -> Vec<u32> {
        let extra = self.fault == Fault::ExtraBos;
        extra.then_some(1).into_iter().chain(tokens.iter().copied()).collect()
    }
}

/// Formats a row by id.
fn by_id(row: &[f32], top: usize) -> BTreeMap<u32, f32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
    order.into_iter().take(top).map(|id| (id, row[id as usize])).collect()
}
