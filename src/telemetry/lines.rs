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

/// Time for which lines are collected.
const DELAY: Duration = Duration::from_millis(5);
/// Buffer size in bytes above which the thread that logs writes the lines itself.
const MAX_WAITING: usize = 1 << 20;

#[derive(Default)]
pub struct Lines {
    waiting: Mutex<Vec<u8>>,
    is_waiting: Condvar,
    /// Locked from taking lines until they are written, which keeps their order. The content is a spare buffer.
    writing: Mutex<Vec<u8>>,
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
        loop {
            let waiting = lock(&self.waiting);
            drop(self.is_waiting.wait_while(waiting, |it| it.is_empty()));
            #[expect(clippy::disallowed_methods, reason = "runs on a dedicated thread")]
            thread::sleep(DELAY);
            self.flush();
        }
    }

    /// Writes all buffered lines.
    pub fn flush(&self) {
        let mut writing = lock(&self.writing);
        mem::swap(&mut *writing, &mut *lock(&self.waiting));
        // If stderr is closed, the error cannot be reported.
        let _ = io::stderr().write_all(&writing);
        writing.clear();
    }
}

impl io::Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            self.is_waiting.notify_one();
        }
        waiting.extend_from_slice(line);
        if waiting.len() > MAX_WAITING {
            drop(waiting);
            Lines::flush(self);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Lines::flush(self);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
