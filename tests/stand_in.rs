//! Inference servers on this machine: they answer with the native engine's numbers, and go wrong on request.

mod forms;
mod http;
mod model;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use model::Running;
pub(crate) use model::Twist;

/// The HTTP that a stand-in speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Vllm,
    Sglang,
    LlamaServer,
    /// Completions with `echo`, ids of generated tokens as `token_id:N`.
    OpenAi,
    /// Completions with text alone.
    Text,
}

/// What goes wrong besides the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// A request begins with the convolution states of the one before.
    ConvLeak,
    /// A prompt whose beginning is cached loses one token of it.
    StalePrefix,
    /// Requests at the same time are padded with visible tokens.
    Padding,
    /// The second likeliest token is chosen.
    NotGreedy,
    /// A token is put before every prompt, and shows in the echo.
    ExtraBos,
    /// All numbers of a row are equal.
    Flat,
    /// Log-probabilities are too large by half a nat.
    Sum,
    /// The answer goes on without end.
    Endless,
    /// The answer does not come.
    Slow,
    /// The server ends after so many requests.
    Dies(usize),
    /// Bytes that are no JSON.
    Garbage,
    /// The answer breaks off.
    Cut,
    /// `NaN` in place of a number.
    Nan,
    /// A number beyond every float.
    Huge,
    /// An id beyond the vocabulary.
    Beyond,
    /// Rows are missing.
    FewRows,
    /// This status, for all but the addresses that say who it is.
    Status(u16),
    /// This status, `.1` times, and then answers.
    Busy(u16, usize),
    /// Another origin.
    Redirect,
    /// So many log-probabilities for each token at most.
    Limit(i64),
    /// Two tokens come, whatever was asked for.
    FewTokens,
    /// The same over warm caches alone.
    FewWarm,
    /// No numbers from the second row of a prompt on.
    OneRow,
    /// There is no room for any prompt.
    NoRoom,
}

struct State {
    form: Form,
    fault: Fault,
    running: Mutex<Running>,
    /// Prompts of requests that caches keep.
    cached: Mutex<Vec<Vec<u32>>>,
    requests: AtomicUsize,
    in_flight: AtomicUsize,
    seen: Mutex<Vec<String>>,
    key: Option<String>,
}

/// A running server; it ends with the test process.
#[derive(Clone)]
pub(crate) struct StandIn {
    /// The address.
    pub url: String,
    state: Arc<State>,
}

/// Most requests of a test.
const ENDS: usize = usize::MAX;

impl StandIn {
    /// Starts a server of a fixture.
    pub(crate) fn start(form: Form, fixture: &str, twist: Twist, fault: Fault) -> Self {
        Self::with_key(form, fixture, twist, fault, None)
    }

    /// The same, for requests that carry a key.
    pub(crate) fn with_key(
        form: Form,
        fixture: &str,
        twist: Twist,
        fault: Fault,
        key: Option<&str>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            form,
            fault,
            running: Mutex::new(Running::open(fixture, twist)),
            cached: Mutex::new(Vec::new()),
            requests: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            seen: Mutex::new(Vec::new()),
            key: key.map(str::to_owned),
        });
        let shared = Arc::clone(&state);
        let most = if let Fault::Dies(most) = fault { most } else { ENDS };
        thread::spawn(move || {
            // The listener goes with the thread, so later connections are refused.
            for stream in listener.incoming().flatten() {
                if shared.requests.fetch_add(1, Ordering::SeqCst) >= most {
                    return;
                }
                let state = Arc::clone(&shared);
                thread::spawn(move || http::serve(&state, &stream));
            }
        });
        Self { url, state }
    }

    /// Request lines with their authorization, oldest first.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.state.seen.lock().unwrap().clone()
    }
}

impl State {
    /// Rows behind each token, as this server computes them in its present company.
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

    /// Tokens that follow a prompt, with their rows.
    fn generate(&self, tokens: &[u32], count: usize, cache: bool) -> Vec<(u32, Vec<f32>)> {
        // The state of the conversation before is there once, at its beginning.
        let mut made: Vec<(u32, Vec<f32>)> = Vec::new();
        let mut all = tokens.to_vec();
        let begin = self.rows(&all, cache);
        let mut next = begin.last().unwrap().clone();
        for step in 0..count {
            let mut order: Vec<usize> = (0..next.len()).collect();
            order.sort_by(|a, b| next[*b].total_cmp(&next[*a]));
            let chosen = order[usize::from(self.fault == Fault::NotGreedy && step == 2)] as u32;
            made.push((chosen, next.clone()));
            all.push(chosen);
            let rows = self.running.lock().unwrap().rows(&self.company(&all), false);
            next.clone_from(rows.last().unwrap());
        }
        made
    }

    /// The tokens as a running sequence of this server has them.
    fn company(&self, tokens: &[u32]) -> Vec<u32> {
        let extra = self.fault == Fault::ExtraBos;
        extra.then_some(1).into_iter().chain(tokens.iter().copied()).collect()
    }
}

/// A row as text, by id.
fn by_id(row: &[f32], top: usize) -> BTreeMap<u32, f32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
    order.into_iter().take(top).map(|id| (id, row[id as usize])).collect()
}
