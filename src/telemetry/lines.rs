//! Writes log lines to stderr in batches, on a separate thread, so that no request waits for the disk or terminal.
//!
//! Invariants:
//! - Lines keep their order. Only `kill -9` may lose lines: those of the last few milliseconds.
//! - Memory is bounded: while stderr is too slow, threads that log wait for it.

use std::{
    io::{self, Write as _},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// Time for which lines are collected.
const GATHERED: Duration = Duration::from_millis(5);
/// Buffer size in bytes above which the thread that logs writes the lines itself.
const MAX_WAITING: usize = 1 << 20;

#[derive(Clone)]
pub struct Lines(Arc<Shared>);

struct Shared {
    waiting: Mutex<Vec<u8>>,
    some: Condvar,
    /// Locked from taking lines until they are written, which keeps their order. The content is a spare buffer.
    writing: Mutex<Vec<u8>>,
}

impl Lines {
    /// Starts the writing thread.
    pub fn start() -> io::Result<Self> {
        let lines = Self(Arc::new(Shared {
            waiting: Mutex::default(),
            some: Condvar::new(),
            writing: Mutex::default(),
        }));
        let writer = lines.clone();
        let thread = thread::Builder::new().name("log".into());
        thread.spawn(move || writer.write_for_ever())?;
        Ok(lines)
    }

    fn write_for_ever(&self) {
        loop {
            let waiting = lock(&self.0.waiting);
            let woken = self
                .0
                .some
                .wait_while(waiting, |waiting| waiting.is_empty());
            drop(woken);
            #[expect(clippy::disallowed_methods, reason = "runs on a dedicated thread")]
            thread::sleep(GATHERED);
            self.flush();
        }
    }

    /// Writes all buffered lines.
    pub fn flush(&self) {
        let mut writing = lock(&self.0.writing);
        mem::swap(&mut *writing, &mut *lock(&self.0.waiting));
        // If stderr is closed, the error cannot be reported.
        let _ = io::stderr().write_all(&writing);
        writing.clear();
    }
}

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = lock(&self.0.waiting);
        if waiting.is_empty() {
            self.0.some.notify_one();
        }
        waiting.extend_from_slice(line);
        let full = waiting.len() > MAX_WAITING;
        drop(waiting);
        if full {
            Self::flush(self);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self);
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Guard that writes the buffered lines when dropped.
#[must_use]
pub struct Flush(pub(super) Lines);

impl Drop for Flush {
    fn drop(&mut self) {
        self.0.flush();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
