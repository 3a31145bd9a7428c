//! Log lines on their way to stderr: those that come within a few milliseconds are written together, by a
//! thread of their own, so that no request waits for the disk or terminal.
//!
//! Invariants: lines keep their order, and none that was said is lost but to `kill -9`, which may take those few
//! milliseconds. Memory is bounded: while stderr cannot keep up, whoever logs waits for it.

use std::{
    io::{self, Write as _},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tracing_subscriber::fmt::MakeWriter;

/// How long lines wait for others.
const GATHERED: Duration = Duration::from_millis(5);
/// Bytes that wait at most.
const ROOM: usize = 1 << 20;

/// Lines on their way. Cheap to clone.
#[derive(Clone)]
pub struct Lines(Arc<Shared>);

struct Shared {
    waiting: Mutex<Vec<u8>>,
    some: Condvar,
    /// Held from taking lines until they are written, which keeps their order; what is in it is room.
    writing: Mutex<Vec<u8>>,
}

impl Lines {
    /// Begins to write what is said.
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
            #[expect(clippy::disallowed_methods, reason = "a thread of its own")]
            thread::sleep(GATHERED);
            self.flush();
        }
    }

    /// Writes all that waits.
    pub fn flush(&self) {
        let mut writing = lock(&self.0.writing);
        mem::swap(&mut *writing, &mut *lock(&self.0.waiting));
        // Where stderr is gone there is nobody to tell.
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
        let full = waiting.len() > ROOM;
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

/// Writes what still waits when the process is about to end.
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
