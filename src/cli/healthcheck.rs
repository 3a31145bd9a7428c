//! `healthcheck`: requests `/livez` of the running service, from inside its container, which has no curl.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

use super::output::{Error, print};
use crate::{config::Config, domain::address::ListenAddress};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Requests `/livez` at the configured address; fails unless the status is 200.
pub async fn run(config: &Config, json: bool) -> Result<(), Error> {
    let mut address = config.server.listen.clone();
    if let ListenAddress::Tcp(address) = &mut address
        && address.ip().is_unspecified()
    {
        // The unspecified address is no destination, but includes loopback.
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let status = async {
        match &address {
            ListenAddress::Tcp(to) => request_status(TcpStream::connect(to).await?).await,
            ListenAddress::Unix(to) => request_status(UnixStream::connect(to).await?).await,
        }
    };
    let problem = match tokio::time::timeout(TIMEOUT, status).await {
        Ok(Ok(status)) if status.starts_with("HTTP/1.1 200") => {
            return print(json, "ok", &json!({"ok": true}));
        }
        Ok(Ok(status)) => format!(" responded with {status}"),
        Ok(Err(error)) => format!(": {error}"),
        Err(_) => format!(" did not respond within {} s", TIMEOUT.as_secs()),
    };
    Err(format!("/livez at {address}{problem}").into())
}

/// Returns the status line of the response.
async fn request_status(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(REQUEST).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}
