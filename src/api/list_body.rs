//! Bodies of lists: JSON in pieces, each of which is counted as memory of lists until it is sent.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::mpsc;

use super::{
    compression::AT_ONCE,
    error::Error,
    response::{MAX_UNCOUNTED, counted},
};
use crate::{
    domain::address::AddressKey,
    limits::shares::{Exhausted, Share, Shares},
};

/// Maximum number of bytes of a part of a list as it is stored, of pets that can be stored today.
pub const PART: usize = 256 << 10;

/// Memory of lists that a client may use.
#[derive(Debug, Clone)]
pub struct ListMemory {
    /// Memory of all lists in bytes.
    pub shares: Shares,
    /// Address of the client.
    pub address: Option<AddressKey>,
    /// Memory in bytes of the encoder of a long list that the client accepts.
    pub encoder: usize,
}

impl ListMemory {
    /// Takes memory.
    pub fn take(&self, bytes: usize) -> Result<Share, Exhausted> {
        self.shares.take(self.address, bytes)
    }

    /// Takes memory for a part before it is read, so that a client that reads none of its responses soon causes no work.
    pub fn reserve(&self) -> Result<Share, Exhausted> {
        self.take(PART)
    }

    /// Responds with the pieces of a list.
    pub fn respond(&self, Pieces { pieces, length }: Pieces) -> Result<Response, Error> {
        let is_long = length > AT_ONCE;
        let encoder = if is_long { self.encoder } else { 0 };
        if is_long && encoder == 0 {
            let pieces = pieces.into_iter();
            let pieces =
                pieces.map(|(json, share)| Ok::<_, Error>(counted(json, &Arc::new(share))));
            let mut response = json_response(Body::from_stream(stream::iter(pieces)));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            return Ok(response);
        }
        let (json, mut shares): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
        if length <= MAX_UNCOUNTED {
            return Ok(json_response(Body::from(json.concat())));
        }
        // One for all: a list with its encoder counts at most as much as one address may use.
        let share = match shares.pop() {
            Some(mut share) if encoder == 0 => {
                drop(shares);
                share.resize(length)?;
                share
            }
            last => {
                drop((last, shares));
                self.take(length + encoder)?
            }
        };
        let share = Arc::new(share);
        if encoder == 0 {
            let mut response = json_response(Body::from(counted(json.concat(), &share)));
            response.extensions_mut().insert(share);
            return Ok(response);
        }
        let (parts, sent) = mpsc::channel(1);
        tokio::spawn(async move {
            for json in json {
                send_in_parts(&parts, counted(json, &share)).await;
            }
        });
        Ok(json_response(Body::from_stream(received(sent))))
    }
}

/// JSON of a list in pieces, each with its memory.
#[derive(Debug, Default)]
pub struct Pieces {
    pieces: Vec<(Vec<u8>, Share)>,
    /// Length of all in bytes.
    pub length: usize,
}

impl Pieces {
    /// Adds a piece, whose memory was taken before it was read. Fails if it has more than that, and the client uses its share.
    pub fn push(&mut self, mut json: Vec<u8>, mut share: Share) -> Result<(), Exhausted> {
        json.shrink_to_fit();
        share.resize(json.len())?;
        self.length += json.len();
        self.pieces.push((json, share));
        Ok(())
    }
}

/// Channel to the body of a list.
pub type Sending = mpsc::Sender<Result<Bytes, Error>>;

/// Sends a list in parts of up to [`AT_ONCE`], so that its compression lets other requests have their turn. Ends if the client
/// disconnects.
pub async fn send_in_parts(parts: &Sending, mut list: Bytes) {
    while !list.is_empty() {
        let part = list.split_to(list.len().min(AT_ONCE));
        if parts.send(Ok(part)).await.is_err() {
            return;
        }
    }
}

/// Returns what a channel receives. tower-http polls it again after the end.
pub fn received<T>(channel: mpsc::Receiver<T>) -> impl Stream<Item = T> {
    let received = stream::unfold(channel, async |mut channel| {
        channel.recv().await.map(|item| (item, channel))
    });
    received.fuse()
}

/// Returns a response with JSON as its body.
pub fn json_response(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
