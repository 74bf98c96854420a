//! Inference servers that respond with damaged JSON: accepted rows must fit the model and the request.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use endpoints::{EndpointOptions, LogprobRow, PrefixCache, PromptRequest, connect};

use super::{Judged, Trial, refused};
use crate::case::Case;

/// Vocabulary size of the model in the responses.
pub(crate) const VOCAB: usize = 6;
const PROMPT: [u32; 3] = [1, 2, 3];

/// Returns the file of a case for a request, chosen by its address and whether it requests rows of the
/// prompt.
fn file_of(path: &str, body: &str) -> String {
    let rows = ["\"prompt_logprobs\"", "\"echo\":true", "\"logprob_start_len\":0"];
    let kind = if rows.iter().any(|word| body.contains(word)) { ".rows" } else { "" };
    format!("{}{kind}.json", path.trim_start_matches('/').replace('/', "_"))
}

/// Scores and generates with a server that responds with the case.
pub(crate) fn answers(trial: &Trial<'_>) -> Judged {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let url = format!("http://{}", listener.local_addr().map_err(|error| error.to_string())?);
    let ended = Arc::new(AtomicBool::new(false));
    let case = trial.case.clone();
    let stop = Arc::clone(&ended);
    let server = std::thread::spawn(move || serve(&listener, &case, &stop));
    let judged = ask(&url);
    ended.store(true, Ordering::Relaxed);
    // The server sees the flag at its next connection.
    drop(std::net::TcpStream::connect(url.trim_start_matches("http://")));
    drop(server.join());
    judged
}

fn serve(listener: &TcpListener, case: &Case, ended: &AtomicBool) {
    for stream in listener.incoming() {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else { return };
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok();
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(count @ 1..) => head.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let at = head.windows(4).position(|end| end == b"\r\n\r\n").map_or(head.len(), |at| at + 4);
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        // A client whose request is not read to the end loses the response.
        let mut left = length.unwrap_or(0).saturating_sub(head.len() - at);
        while left > 0 {
            match stream.read(&mut piece) {
                Ok(count @ 1..) => {
                    left = left.saturating_sub(count);
                    head.extend_from_slice(&piece[..count]);
                }
                _ => break,
            }
        }
        let path = text.split(' ').nth(1).unwrap_or_default();
        let empty = Vec::new();
        let body = String::from_utf8_lossy(&head[at..]);
        let file = case.files.get(&file_of(path, &body));
        let (status, body) = file.map_or(("404 Not Found", &empty), |body| ("200 OK", body));
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(body)).ok();
    }
}

fn ask(url: &str) -> Judged {
    let options = EndpointOptions {
        vocab: VOCAB,
        top: VOCAB,
        tries: 1,
        connect: Duration::from_secs(5),
        answer: Duration::from_secs(5),
        backoff: Duration::from_millis(1),
        most_bytes: 4 << 20,
        ..EndpointOptions::default()
    };
    let server = match connect(url, &options) {
        Ok(server) => server,
        Err(error) => return refused(&error.to_string()),
    };
    let ask = PromptRequest { tokens: &PROMPT, cache: PrefixCache::Off };
    let mut taken = true;
    match server.score(&ask, &[0, 1, 2]) {
        Ok(scored) => {
            if scored.rows.len() != 3 {
                return Err(format!("{} rows for three positions", scored.rows.len()));
            }
            scored.rows.iter().try_for_each(sound)?;
        }
        Err(error) => taken = refused(&error.to_string())?,
    }
    match server.generate(&ask, 2) {
        Ok(generated) => {
            let tokens = generated.ids.len();
            let rows = generated.rows.len();
            if tokens > 2 || !(rows == 0 || rows == tokens) {
                return Err(format!("{tokens} tokens and {rows} rows of two"));
            }
            if let Some(id) = generated.ids.iter().find(|id| **id as usize >= VOCAB) {
                return Err(format!("token {id} of a vocabulary of {VOCAB}"));
            }
            generated.rows.iter().try_for_each(sound)?;
        }
        Err(error) => taken = refused(&error.to_string())?,
    }
    Ok(taken)
}

/// Checks a row: ids of the vocabulary, each once, with valid log-probabilities.
fn sound(row: &LogprobRow) -> Result<(), String> {
    let ids: Vec<usize> = row.entries().map(|(id, _)| id).collect();
    if ids.iter().any(|id| *id >= VOCAB) || ids.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(format!("a row has the ids {ids:?}"));
    }
    match row
        .entries()
        .map(|entry| entry.1)
        .chain(row.target)
        .find(|value: &f32| value.is_nan() || *value > 0.01)
    {
        Some(value) => Err(format!("a row has the log-probability {value}")),
        None => Ok(()),
    }
}
