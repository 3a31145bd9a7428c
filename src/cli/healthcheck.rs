//! `healthcheck`: requests `/livez` of the running service, from inside its container, which has no curl.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::output::{Error, say};
use crate::config::Config;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Requests `/livez` at the configured address; fails unless the status is 200.
pub async fn run(config: &Config) -> Result<(), Error> {
    let mut address = config.server.listen;
    if address.ip().is_unspecified() {
        // The unspecified address is no destination, but includes loopback.
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let problem = match tokio::time::timeout(TIMEOUT, request_status(address)).await {
        Ok(Ok(status)) if status.starts_with("HTTP/1.1 200") => return say("ok"),
        Ok(Ok(status)) => format!(" responded with {status}"),
        Ok(Err(error)) => format!(": {error}"),
        Err(_) => format!(" did not respond within {} s", TIMEOUT.as_secs()),
    };
    Err(format!("http://{address}/livez{problem}").into())
}

/// Returns the status line of the response.
async fn request_status(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}
