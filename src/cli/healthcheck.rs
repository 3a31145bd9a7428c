//! `healthcheck`: requests `/livez` of the running service, from inside its container, which has no curl.

use std::{net::SocketAddr, time::Duration};

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
        let here = if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        };
        address.set_ip(here);
    }
    let status = tokio::time::timeout(TIMEOUT, ask(address))
        .await
        .map_err(|_| {
            let seconds = TIMEOUT.as_secs();
            format!("http://{address}/livez did not respond within {seconds} s")
        })?
        .map_err(|error| format!("http://{address}/livez: {error}"))?;
    if !status.starts_with("HTTP/1.1 200") {
        return Err(format!("http://{address}/livez responded with {status}").into());
    }
    say("ok")?;
    Ok(())
}

/// Returns the status line of the response.
async fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}
