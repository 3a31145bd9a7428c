//! Writes log lines to stderr in batches, on a separate thread, so that no request waits for the disk or terminal.
//!
//! Invariants:
//! - Lines keep their order. `kill -9` loses at most those of the last few milliseconds.
//! - No thread waits for stderr. Lines beyond [`MAX_WAITING`], and those that a full disk or a closed pipe does not take, are dropped
//!   and counted; a line says so once stderr takes lines again.

use std::{
    io, mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Time for which lines are collected.
const DELAY: Duration = Duration::from_millis(5);
/// Maximum number of bytes that wait.
const MAX_WAITING: usize = 1 << 20;

#[derive(Default)]
pub struct Lines {
    buffer: Mutex<Buffer>,
    is_changed: Condvar,
}

#[derive(Default)]
struct Buffer {
    waiting: Vec<u8>,
    /// True while the thread writes lines that it took.
    is_writing: bool,
    /// Number of lines dropped since the last report.
    dropped: u64,
}

impl Lines {
    /// Starts the writing thread.
    pub fn start() -> io::Result<Arc<Self>> {
        let lines = Arc::new(Self::default());
        let shared = Arc::clone(&lines);
        let thread = thread::Builder::new().name("log".into());
        thread.spawn(move || shared.write_forever())?;
        Ok(lines)
    }

    fn write_forever(&self) {
        let mut lines = Vec::new();
        // True if the last line that was written is cut.
        let mut is_cut = false;
        loop {
            let buffer = self.lock();
            drop((self.is_changed).wait_while(buffer, |it| it.waiting.is_empty()));
            #[expect(clippy::disallowed_methods, reason = "runs on a dedicated thread")]
            thread::sleep(DELAY);
            let mut buffer = self.lock();
            mem::swap(&mut lines, &mut buffer.waiting);
            buffer.is_writing = true;
            drop(buffer);
            if is_cut {
                is_cut = write_all(io::stderr(), b"\n") == 0;
            }
            let written = if is_cut {
                0
            } else {
                write_all(io::stderr(), &lines)
            };
            let (written, lost) = lines.split_at(written);
            is_cut |= written.last().is_some_and(|last| *last != b'\n');
            let lost = memchr::memchr_iter(b'\n', lost).count() as u64;
            let mut buffer = self.lock();
            buffer.is_writing = false;
            buffer.count_dropped(lost);
            // The report would be lost, too.
            let dropped = if lost == 0 {
                mem::take(&mut buffer.dropped)
            } else {
                0
            };
            drop(buffer);
            lines.clear();
            self.is_changed.notify_all();
            if dropped > 0 {
                tracing::warn!(
                    lines = dropped,
                    "dropped log lines: stderr was too slow, or its disk full"
                );
            }
        }
    }

    /// Waits for up to `limit` until all lines are written.
    pub fn flush(&self, limit: Duration) {
        let _ = (self.is_changed).wait_timeout_while(self.lock(), limit, |it| {
            it.is_writing || !it.waiting.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn count_dropped(&mut self, lines: u64) {
        self.dropped += lines;
        metrics::counter!("log_dropped_lines_total").increment(lines);
    }
}

/// Writes as much as `to` takes. Returns the number of bytes.
fn write_all(mut to: impl io::Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(count) => written += count,
        }
    }
    written
}

impl io::Write for &Lines {
    /// Takes a whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut buffer = self.lock();
        if buffer.waiting.len() + line.len() > MAX_WAITING {
            buffer.count_dropped(1);
            return Ok(line.len());
        }
        if buffer.waiting.is_empty() {
            self.is_changed.notify_all();
        }
        buffer.waiting.extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
