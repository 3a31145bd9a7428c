//! Connections of attackers: each sends its messages again and again, and reads everything or nothing.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use test_support::*;
use tokio::{
    net::{
        TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Builder,
    time::{sleep, timeout},
};

/// Time after which a connection that reads nothing is given up: it cannot see that the service has closed it.
const UNREAD: Duration = Duration::from_secs(30);

/// Returns a message of a connection by the number of the connection and its own, which begins with 1.
pub type Message = Box<dyn Fn(u32, u32) -> Vec<u8> + Send + Sync>;

/// An attack on the service by several connections.
pub struct Attack {
    pub name: &'static str,
    /// Number of connections at the same time.
    pub connections: usize,
    /// Pause between two messages, and between a connection and the next.
    pub pause: Duration,
    /// Set if responses are read; they are discarded.
    pub reads: bool,
    /// Bytes that open a connection.
    pub opening: Bytes,
    pub next: Message,
    pub count: Count,
}

/// Counts of an attack: connections, messages, responses by status.
#[derive(Default)]
pub struct Count {
    connections: AtomicU32,
    messages: AtomicU32,
    statuses: Mutex<BTreeMap<String, u32>>,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [connections, messages] =
            [&self.connections, &self.messages].map(|count| count.load(Ordering::Relaxed));
        write!(f, "{connections} connections, {messages} messages")?;
        for (status, count) in self.statuses.lock().expect("never poisoned").iter() {
            write!(f, ", {count} × {status}")?;
        }
        Ok(())
    }
}

impl Attack {
    /// Returns an attack by requests on connections that are kept alive.
    pub fn of_requests(
        name: &'static str,
        connections: usize,
        pause: Duration,
        next: impl Fn(u32, u32) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            connections,
            pause,
            reads: true,
            opening: Bytes::new(),
            next: Box::new(next),
            count: Count::default(),
        }
    }

    /// Returns an attack by connections that send `opening` and then nothing.
    pub fn of_silence(
        name: &'static str,
        connections: usize,
        pause: Duration,
        opening: impl Into<Bytes>,
    ) -> Self {
        Self {
            opening: opening.into(),
            ..Self::of_requests(name, connections, pause, |_, _| Vec::new())
        }
    }

    /// Returns true if each of its connections was opened at least once.
    pub fn took_place(&self) -> bool {
        self.count.connections.load(Ordering::Relaxed) as usize >= self.connections
    }

    /// Opens connections from one address, one after the other.
    async fn repeat(&self, client: SocketAddr, service: SocketAddr, first: Duration) {
        sleep(first).await;
        loop {
            if let Ok(stream) = self.connect(client, service).await {
                let number = self.count.connections.fetch_add(1, Ordering::Relaxed);
                let (reader, writer) = stream.into_split();
                tokio::select! {
                    () = self.send(writer, number) => {}
                    () = self.receive(reader) => {}
                }
            }
            sleep(self.pause).await;
        }
    }

    async fn connect(&self, client: SocketAddr, service: SocketAddr) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if !self.reads {
            socket.set_recv_buffer_size(4 << 10)?;
        }
        socket.bind(client)?;
        let stream = timeout(UNREAD, socket.connect(service)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends messages until the service does not take them.
    async fn send(&self, mut writer: OwnedWriteHalf, connection: u32) {
        let mut message = self.opening.to_vec();
        for number in 1.. {
            if writer.write_all(&message).await.is_err() {
                return;
            }
            if !message.is_empty() {
                self.count.messages.fetch_add(1, Ordering::Relaxed);
            }
            sleep(self.pause).await;
            message = (self.next)(connection, number);
        }
    }

    /// Reads until the end of the stream.
    async fn receive(&self, mut reader: OwnedReadHalf) {
        if !self.reads {
            return sleep(UNREAD).await;
        }
        let mut buffer = vec![0; 4 << 10];
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            if let Some(status) = buffer[..length].strip_prefix(b"HTTP/1.1 ") {
                let status = String::from_utf8_lossy(status.get(..3).unwrap_or_default());
                let mut statuses = self.count.statuses.lock().expect("never poisoned");
                *statuses.entry(status.into_owned()).or_default() += 1;
            }
        }
    }
}

/// Attacks in progress, in a thread of their own: their work delays no honest client.
pub struct Running {
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

impl Running {
    /// Starts all attacks, each from `addresses` addresses of its own: `127.0.10.1` and so on, `127.0.11.1` and so on.
    pub fn start(attacks: &Arc<Vec<Attack>>, service: SocketAddr, addresses: usize) -> Self {
        let stop = CancellationToken::new();
        let (attacks, stopped) = (Arc::clone(attacks), stop.clone());
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let mut connections = JoinSet::new();
                for attack in 0..attacks.len() {
                    let count = attacks[attack].connections;
                    for connection in 0..count {
                        let number = |number: usize| u8::try_from(number).expect("a few");
                        let (third, last) = (number(10 + attack), connection % addresses + 1);
                        let client = SocketAddr::from(([127, 0, third, number(last)], 0));
                        let attacks = Arc::clone(&attacks);
                        connections.spawn(async move {
                            let attack = &attacks[attack];
                            let share = u32::try_from(count).expect("a few");
                            let first =
                                attack.pause / share * u32::try_from(connection).expect("a few");
                            attack.repeat(client, service, first).await;
                        });
                    }
                }
                stopped.cancelled().await;
                connections.shutdown().await;
            });
        });
        Self { stop, thread }
    }

    /// Stops the attacks and closes their connections.
    pub fn stop(self) {
        self.stop.cancel();
        self.thread.join().expect("no panic of an attack");
    }
}
