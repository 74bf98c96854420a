//! Worker as its parent process sees it: it responds, hangs, or dies.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::worker::{Order, Place, Report};

/// Limits of a case: seconds of processor time, and of wall-clock time.
const MOST: (f64, u64) = (20.0, 300);

/// Worker process.
pub(crate) struct Worker {
    child: Child,
    socket: UnixStream,
    left: Vec<u8>,
    place: Place,
}

/// Reason why there is no response.
pub(crate) enum Silence {
    /// The process ended, with a signal or an exit code, after printing this.
    Died(String),
    /// The process takes too long.
    Hangs,
}

impl Worker {
    /// Starts a worker with bounded memory.
    pub(crate) fn start(place: &Place) -> io::Result<Self> {
        fs_err::create_dir_all(&place.dir)?;
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        let output = place.dir.join("output");
        fs_err::write(&output, "")?;
        let appended = std::fs::OpenOptions::new().append(true).open(&output)?;
        let child = Command::new("sh")
            .args(["-c", "ulimit -c 0; ulimit -v 16777216; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe()?)
            .args(["--worker".as_ref(), place.dir.as_os_str(), place.made.as_os_str()])
            .args(["--seed", &place.seed.to_string()])
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", "/nonexistent/hf-home")
            .env_remove("HF_TOKEN")
            // The output of a process that died should fit on a line.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(appended.try_clone()?)
            .stderr(appended)
            .spawn()?;
        Ok(Self { child, socket, left: Vec::new(), place: place.clone() })
    }

    /// Sends an order.
    pub(crate) fn order(&mut self, order: &Order) -> io::Result<()> {
        let line = serde_json::to_string(order)? + "\n";
        self.socket.write_all(line.as_bytes())
    }

    /// Waits for the next report.
    pub(crate) fn report(&mut self) -> io::Result<Result<Report, Silence>> {
        let started = Instant::now();
        let before = self.seconds();
        loop {
            if let Some(end) = self.left.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.left.drain(..=end).collect();
                return Ok(Ok(serde_json::from_slice(&line)?));
            }
            let mut piece = [0; 4096];
            match self.socket.read(&mut piece) {
                Ok(0) => return Ok(Err(self.died()?)),
                Ok(count) => self.left.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(Err(self.died()?));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let (processor, clock) = MOST;
                    let used = self.seconds() - before;
                    if used > processor || started.elapsed().as_secs() > clock {
                        self.child.kill().ok();
                        self.child.wait()?;
                        return Ok(Err(Silence::Hangs));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn died(&mut self) -> io::Result<Silence> {
        let status = self.child.wait()?;
        let printed = fs_err::read(self.place.dir.join("output"))?;
        let printed = String::from_utf8_lossy(&printed);
        let last: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
        let last = last[last.len().saturating_sub(3)..].join(" / ");
        let how = match status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit code {:?}", status.code()),
        };
        Ok(Silence::Died(format!("died with {how}: {last}")))
    }

    /// Returns the processor time of the process so far.
    fn seconds(&self) -> f64 {
        let text = fs_err::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let text = text.unwrap_or_default();
        // Fields after the name, which may have spaces: state, then numbers; user and system time are 12
        // and 13.
        let (_, numbers) = text.rsplit_once(')').unwrap_or_default();
        let ticks = numbers.split_whitespace().skip(11).take(2);
        ticks.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
