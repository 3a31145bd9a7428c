//! Plain TCP connection, for requests that no HTTP client would send.

use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt::TcpMaxSeg};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{PATIENCE, Response};

/// Sends a request from a loopback address, and reads nothing of its response but the status, which is returned with the
/// connection. Small segments keep the buffers of the kernel small: about 64 KiB of the response are sent.
pub async fn request_unread(client: &str, address: SocketAddr, head: &str) -> (TcpStream, u16) {
    let socket = TcpSocket::new_v4().expect("a socket");
    let client = SocketAddr::new(client.parse().expect("an address"), 0);
    socket.bind(client).expect("a loopback address");
    socket.set_recv_buffer_size(4 << 10).expect("a buffer");
    setsockopt(&socket, TcpMaxSeg, &536).expect("a segment size");
    let mut stream = socket.connect(address).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.expect("a response");
    let line = str::from_utf8(&line).expect("a status line");
    let status = line.strip_prefix("HTTP/1.1 ").expect("a status line");
    (stream, status.parse().expect("a status"))
}

/// Opens a connection from a loopback address. 127.0.0.1 to 127.255.255.254 are those of different clients.
pub async fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let client = SocketAddr::new(client.parse().expect("an address"), 0);
    socket.bind(client).expect("a loopback address");
    let stream = socket.connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Plain TCP connection.
pub struct RawConnection {
    stream: TcpStream,
    /// Bytes read beyond the last response.
    rest: Vec<u8>,
}

impl From<TcpStream> for RawConnection {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            rest: Vec::new(),
        }
    }
}

impl RawConnection {
    /// Opens a connection.
    pub async fn connect(address: SocketAddr) -> Self {
        Self::from(connect_from("127.0.0.1", address).await)
    }

    /// Connects, sends, and reads one response.
    pub async fn exchange(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Response {
        let mut raw = Self::connect(address).await;
        raw.send(bytes).await;
        raw.response().await
    }

    /// Sends bytes. If the server has closed the connection, the next read shows it.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
    }

    /// Closes the sending half.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.expect("a half-closed socket");
    }

    /// Reads one response, with a body of `Content-Length` bytes.
    pub async fn response(&mut self) -> Response {
        let head_end = loop {
            if let Some(end) = self.rest.windows(4).position(|end| end == b"\r\n\r\n") {
                break end + 4;
            }
            let received = String::from_utf8_lossy(&self.rest).into_owned();
            assert!(
                self.read_more().await,
                "closed before a response: {received:?}"
            );
        };
        let head: Vec<u8> = self.rest.drain(..head_end).collect();
        let head = String::from_utf8(head).expect("a head of text");
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .or(status_line.strip_prefix("HTTP/1.0 "))
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .unwrap_or_else(|| panic!("not a status line: {status_line:?}"));
        let headers: HeaderMap = lines
            .map(|line| {
                let (name, value) = line.split_once(": ").expect("a field");
                let name: HeaderName = name.parse().expect("a name");
                (name, HeaderValue::from_str(value).expect("a value"))
            })
            .collect();
        let length: usize = headers
            .get("content-length")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or_default();
        while self.rest.len() < length {
            assert!(self.read_more().await, "closed within the body of {head}");
        }
        let body: Vec<u8> = self.rest.drain(..length).collect();
        Response {
            status,
            headers,
            body: body.into(),
        }
    }

    /// Waits for the server to close the connection and returns the bytes until then.
    pub async fn closed(&mut self) -> String {
        while self.read_more().await {}
        String::from_utf8_lossy(&self.rest).into_owned()
    }

    /// Reads more bytes; returns false at the end of the stream.
    async fn read_more(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.rest);
        match tokio::time::timeout(PATIENCE, read).await {
            Ok(Ok(0) | Err(_)) => false,
            Ok(Ok(_)) => true,
            Err(_) => {
                let received = String::from_utf8_lossy(&self.rest).into_owned();
                panic!(
                    "neither data nor a close within {PATIENCE:?}; received so far: {received:?}"
                )
            }
        }
    }
}
