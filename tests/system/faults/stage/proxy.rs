//! TCP proxy that can drop all traffic silently, or switch to another server.

use test_support::*;
use tokio::{
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinHandle,
};

/// A TCP proxy. It stops accepting when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    /// Set while bytes pass.
    open: watch::Sender<bool>,
    /// Incremented to cut all open connections.
    cut: watch::Sender<u32>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of a server.
    pub async fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let target = Arc::new(Mutex::new(target));
        let (open, cut) = (watch::Sender::new(true), watch::Sender::new(0));
        let (to, opens, cuts) = (Arc::clone(&target), open.subscribe(), cut.subscribe());
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let target = *to.lock().expect("never poisoned");
                let (opens, mut cuts) = (opens.clone(), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        () = pass(client, target, opens) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self {
            address,
            target,
            open,
            cut,
            accepting,
        }
    }

    /// Stops all traffic without closing connections. New ones are accepted and stay silent.
    pub fn swallow(&self) {
        self.open.send_replace(false);
    }

    /// Resumes traffic, starting with the bytes held back.
    pub fn pass(&self) {
        self.open.send_replace(true);
    }

    /// Directs new connections to another server and cuts the open ones.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.target.lock().expect("never poisoned") = target;
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(client: TcpStream, target: SocketAddr, open: watch::Receiver<bool>) {
    let mut opened = open.clone();
    let _ = opened.wait_for(|open| *open).await;
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::join!(
        one_way(from_client, to_server, open.clone()),
        one_way(from_server, to_client, open),
    );
}

async fn one_way(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let _ = open.wait_for(|open| *open).await;
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = open.wait_for(|open| *open).await;
    let _ = to.shutdown().await;
}
