//! A child process: bytes in, bytes out, its last words, and its end.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::EngineLaunch;

/// Bytes that are read from a child at once.
const PIECE: usize = 1 << 16;
/// Pieces that wait to be taken; a child that sends more has to wait.
const PIECES: usize = 64;
/// Lines of standard error that are kept.
const LINES: usize = 256;
/// Characters of each that are kept.
const WIDTH: usize = 300;
/// Characters of a message that an engine answers with.
const MESSAGE: usize = 4000;
/// Lines that errors show.
const SHOWN: usize = 20;

/// The reason that a child sends nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadFailure {
    /// The child closed its standard output, or ended.
    Closed,
    /// The time was up.
    Timeout,
    /// A line was longer than any line may be.
    LineTooLong,
}

/// A running child.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    mark: ChildMark,
    input: Sender<Vec<u8>>,
    output: Receiver<Vec<u8>>,
    /// Bytes that were received and not taken.
    unread: VecDeque<u8>,
    stderr_lines: Arc<Mutex<VecDeque<String>>>,
}

/// Children that run.
static RUNNING: Mutex<BTreeSet<ChildMark>> = Mutex::new(BTreeSet::new());

/// Kills every child that runs. For a program that is about to exit.
pub fn end_all() {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.iter().for_each(ChildMark::kill);
    // The lock stays taken: no child starts after this.
    std::mem::forget(running);
}

/// Marks of a child by which what it starts is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ChildMark {
    /// Its process group, with its own id.
    group: u32,
    /// Value of [`VARIABLE`] in the environment, which processes in other groups and sessions inherit too.
    value: String,
}

/// Variable in the environment of a child and of everything that it starts.
const VARIABLE: &str = "ONBOARD_ENGINE_PROCESS";
/// Rounds of looking for processes that a child started: one that is killed may have started another.
const ROUNDS: usize = 8;

/// Returns a value that no other child has.
fn mark_value() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{count}-{since}", std::process::id())
}

impl ChildMark {
    /// Kills the child and what it started.
    fn kill(&self) {
        kill_group(self.group);
        for _ in 0..ROUNDS {
            if kill_marked(&self.value) == 0 {
                return;
            }
        }
    }
}

#[cfg(unix)]
fn kill_group(id: u32) {
    use rustix::process::{Pid, Signal, kill_process_group};
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // A group that is gone needs no signal.
        kill_process_group(pid, Signal::KILL).ok();
    }
}

#[cfg(not(unix))]
fn kill_group(_id: u32) {}

/// Kills the processes with this value in their environment; returns their number.
#[cfg(target_os = "linux")]
fn kill_marked(value: &str) -> usize {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let marked = format!("{VARIABLE}={value}");
    let Ok(entries) = fs_err::read_dir("/proc") else { return 0 };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut count = 0;
    for id in ids.filter(|id| u32::try_from(*id) != Ok(std::process::id())) {
        // A handle first, so that the signal goes to the process whose environment was read.
        let handle = Pid::from_raw(id).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let Some(handle) = handle else { continue };
        let Ok(environment) = fs_err::read(format!("/proc/{id}/environ")) else { continue };
        let is_marked = environment.split(|byte| *byte == 0).any(|pair| pair == marked.as_bytes());
        if is_marked && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
            count += 1;
        }
    }
    count
}

#[cfg(not(target_os = "linux"))]
fn kill_marked(_value: &str) -> usize {
    0
}

impl Process {
    pub(super) fn start(launch: &EngineLaunch) -> std::io::Result<Self> {
        let mut command = Command::new(&launch.program);
        command.args(&launch.arguments).envs(launch.variables.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let value = mark_value();
        command.env(VARIABLE, &value);
        // A group of its own, so that what it starts ends with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        // Under the lock, so that a signal finds every child that was started.
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = command.spawn()?;
        let mark = ChildMark { group: child.id(), value };
        running.insert(mark.clone());
        drop(running);
        let mut stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let (input, requests) = channel::<Vec<u8>>();
        let (pieces, output) = sync_channel(PIECES);
        let stderr_lines = Arc::new(Mutex::new(VecDeque::new()));
        let shared_lines = Arc::clone(&stderr_lines);
        let mut process =
            Self { child, mark, input, output, unread: VecDeque::new(), stderr_lines };
        let threads = [
            std::thread::Builder::new().name("engine input".to_owned()).spawn(move || {
                for bytes in requests {
                    let Some(stdin) = stdin.as_mut() else { return };
                    // A child that is gone is noticed where its answer is missing.
                    if stdin.write_all(&bytes).and_then(|()| stdin.flush()).is_err() {
                        return;
                    }
                }
            }),
            std::thread::Builder::new()
                .name("engine output".to_owned())
                .spawn(move || forward(stdout, &pieces)),
            std::thread::Builder::new()
                .name("engine messages".to_owned())
                .spawn(move || keep(stderr, &shared_lines)),
        ];
        for thread in threads {
            if let Err(error) = thread {
                process.kill();
                return Err(error);
            }
        }
        Ok(process)
    }

    pub(super) fn send(&self, bytes: Vec<u8>) {
        // Without its thread the answer is missing, which is noticed.
        self.input.send(bytes).ok();
    }

    /// Waits for more bytes.
    fn more(&mut self, deadline: Instant) -> Result<(), ReadFailure> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.output.recv_timeout(left) {
            Ok(piece) => self.unread.extend(piece),
            Err(RecvTimeoutError::Timeout) => return Err(ReadFailure::Timeout),
            Err(RecvTimeoutError::Disconnected) => return Err(ReadFailure::Closed),
        }
        Ok(())
    }

    /// Reads a line of at most `limit` bytes, without its end.
    pub(super) fn line(&mut self, limit: usize, deadline: Instant) -> Result<Vec<u8>, ReadFailure> {
        let mut seen = 0;
        loop {
            if let Some(at) = self.unread.iter().skip(seen).position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unread.drain(..=seen + at).collect();
                line.pop();
                return Ok(line);
            }
            seen = self.unread.len();
            if seen > limit {
                return Err(ReadFailure::LineTooLong);
            }
            self.more(deadline)?;
        }
    }

    /// Reads `count` little-endian numbers. Memory grows with what arrives.
    pub(super) fn numbers(
        &mut self,
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<f32>, ReadFailure> {
        let mut numbers = Vec::with_capacity(count.min(PIECE));
        while numbers.len() < count {
            let complete_count = (self.unread.len() / 4).min(count - numbers.len());
            if complete_count == 0 {
                self.more(deadline)?;
                continue;
            }
            let mut bytes = self.unread.drain(..complete_count * 4);
            while let (Some(a), Some(b), Some(c), Some(d)) =
                (bytes.next(), bytes.next(), bytes.next(), bytes.next())
            {
                numbers.push(f32::from_le_bytes([a, b, c, d]));
            }
        }
        Ok(numbers)
    }

    /// Returns the start of the received and unread bytes, for messages.
    pub(super) fn pending(&self) -> String {
        let bytes: Vec<u8> = self.unread.iter().take(WIDTH).copied().collect();
        plain(&String::from_utf8_lossy(&bytes))
    }

    /// Kills the child; returns its exit status if it had ended by itself.
    pub(super) fn end(&mut self) -> Option<String> {
        /// Time that a child may take to end once its output is closed.
        const MOMENT: Duration = Duration::from_millis(500);
        let until = Instant::now() + MOMENT;
        let status = loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                status => break status.ok().flatten(),
            }
        };
        self.kill();
        status.map(|status| status.to_string())
    }

    /// Returns the last lines of standard error.
    pub(super) fn last_words(&self) -> Vec<String> {
        let mut stderr_lines = self.all_words();
        stderr_lines.drain(..stderr_lines.len().saturating_sub(SHOWN));
        stderr_lines
    }

    fn all_words(&self) -> Vec<String> {
        // What was written before the end may still be on its way.
        std::thread::sleep(Duration::from_millis(50));
        self.stderr_lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Returns the newest line of standard error that names an exception other than `words`. An engine of
    /// several processes reports the end of one, and not the reason.
    pub(super) fn cause(&self, words: &str) -> Option<String> {
        let stderr_lines = self.all_words();
        stderr_lines
            .iter()
            .rev()
            .find(|line: &&String| {
                let message = line.split_once("Error: ").map(|(_, message)| message.trim());
                message.is_some_and(|message| !message.is_empty() && !words.contains(message))
            })
            .cloned()
    }

    fn kill(&mut self) {
        self.mark.kill();
        // Where there are no groups, the child alone; one that is gone needs no signal.
        self.child.kill().ok();
        self.child.wait().ok();
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.mark);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Hands on what a child writes.
fn forward(stdout: Option<ChildStdout>, pieces: &SyncSender<Vec<u8>>) {
    let Some(mut stdout) = stdout else { return };
    let mut piece = vec![0; PIECE];
    while let Ok(count) = stdout.read(&mut piece) {
        if count == 0 || pieces.send(piece[..count].to_vec()).is_err() {
            return;
        }
    }
}

/// Keeps the last lines of standard error.
fn keep(stderr: Option<ChildStderr>, stderr_lines: &Mutex<VecDeque<String>>) {
    let Some(stderr) = stderr else { return };
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut where it would take room.
        let mut part = (&mut reader).take(PIECE as u64);
        match part.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = plain(String::from_utf8_lossy(&line).trim_end());
        if text.is_empty() {
            continue;
        }
        let mut stderr_lines = stderr_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if stderr_lines.len() == LINES {
            stderr_lines.pop_front();
        }
        stderr_lines.push_back(text);
    }
}

/// Formats text of a child as one line that no terminal takes for commands.
pub(super) fn plain(text: &str) -> String {
    cut(text, WIDTH)
}

/// Formats a message like [`plain`], and keeps its end, which often holds the reason.
pub(super) fn message(text: &str) -> String {
    cut(text, MESSAGE)
}

fn cut(text: &str, width: usize) -> String {
    let mut shown: String =
        text.chars().take(width).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(width).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_child_is_one_short_line() {
        assert_eq!(plain("a\u{1b}[31mb\nc"), "a [31mb c");
        let long = plain(&"x".repeat(1000));
        assert!(long.len() == WIDTH + 3 && long.ends_with("..."));
    }
}
