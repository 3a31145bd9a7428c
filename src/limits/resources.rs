//! Limits of what requests use: at the same time, and of their bodies.

use std::time::Duration;

use super::{
    open_files::OpenFiles,
    shares::{Exhausted, Share, Shares},
};
use crate::{config, domain::address::AddressKey};

/// Maximum number of bytes of images that are being sent.
const MAX_IMAGES: usize = 64 << 20;
/// Maximum number of bytes counted for an image that is being sent: two pieces of 128 KiB.
const MAX_OF_IMAGE: usize = 256 << 10;
/// Maximum number of look-ups of images and of requests that wait for a rendering. By default, a client may have as many as
/// requests without credentials.
const MAX_RENDERINGS: usize = 512;
/// Maximum number of requests that wait for a password hash: about one second of work.
const MAX_WAITING_HASHES: usize = 50;

/// Limits of what requests use at the same time, in total and by client address.
#[derive(Debug, Clone)]
pub struct ConcurrencyLimits {
    /// Number of requests in progress, until the response head.
    pub requests: Shares,
    /// Number of those without credentials.
    pub without_credentials: Shares,
    /// Number of requests with an unread body.
    pub arriving: Shares,
    /// Number of look-ups of images, and of requests that wait for a rendering, which goes on if the client disconnects.
    pub renderings: Shares,
    /// Number of passwords that are being hashed or wait for it, except those of lists of accounts.
    pub password_hashes: Shares,
    /// Bytes of lists that are being sent.
    pub lists: Shares,
    /// Bytes of images that are being sent.
    images: Shares,
    /// Minimum number of bytes counted for an image, which bounds the number of open files.
    min_of_image: usize,
    /// Number of streams of changes.
    pub change_streams: Shares,
}

impl ConcurrencyLimits {
    /// Allows `max_requests` concurrent requests, of which half may be of one address and half without credentials,
    /// `max_response_memory` bytes of lists, a queue of `hashes_at_once` passwords, as many images as `files` has, and
    /// `max_streams` streams of changes, of which an eighth may be of one address, on half of the connections.
    pub fn new(
        server: &config::Server,
        changes: &config::Changes,
        files: OpenFiles,
        hashes_at_once: usize,
    ) -> Self {
        let (max_requests, half) = (server.max_requests, server.max_requests.div_ceil(2));
        let max_response_memory = server.max_response_memory.as_u64();
        let max_response_memory = usize::try_from(max_response_memory).unwrap_or(usize::MAX);
        let max_streams = changes.max_streams.min(files.connections / 2);
        let hashes = hashes_at_once + MAX_WAITING_HASHES;
        let min_of_image = MAX_IMAGES / files.images;
        Self {
            requests: Shares::new(max_requests, half),
            without_credentials: Shares::new(half, half.div_ceil(4)),
            arriving: Shares::new(half + half / 2, half.div_ceil(4)),
            // A page of an image gallery may need many at once.
            renderings: Shares::new(MAX_RENDERINGS, MAX_RENDERINGS / 4),
            password_hashes: Shares::new(hashes, hashes / 4),
            lists: Shares::new(max_response_memory, max_response_memory / 8),
            images: Shares::new(MAX_IMAGES, min_of_image.max(MAX_IMAGES / 8)),
            min_of_image,
            change_streams: Shares::new(max_streams, max_streams.div_ceil(8)),
        }
    }

    /// Takes a share of what images may use while they are sent, for one of `length` bytes.
    pub fn image(&self, client: Option<AddressKey>, length: usize) -> Result<Share, Exhausted> {
        let counted = length.min(MAX_OF_IMAGE).max(self.min_of_image);
        self.images.take(client, counted)
    }
}

/// Limits of a body.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Maximum size in bytes.
    pub max_size: u64,
    /// Time limit until the whole body has arrived.
    pub timeout: Duration,
    /// Time limit until more of the body has arrived.
    pub pause: Duration,
    /// Minimum average size in bytes of chunks, if there are many.
    pub min_chunk: u64,
}

impl BodyLimits {
    /// Limits of a JSON or form body. Some clients write it value by value.
    pub const fn new(max_size: u64, timeout: Duration) -> Self {
        Self {
            max_size,
            timeout,
            pause: timeout,
            min_chunk: 8,
        }
    }
}

/// Limits of uploads.
#[derive(Debug, Clone)]
pub struct Uploads {
    /// Number of uploads in progress.
    pub in_progress: Shares,
    /// Limits of the body; the maximum size is that of an image.
    pub body: BodyLimits,
}

impl Uploads {
    /// Creates the configured limits. `pause` is the maximum pause within any body.
    pub fn new(config: &config::Images, pause: Duration) -> Self {
        Self {
            in_progress: Shares::new(config.max_uploads, config.max_uploads.div_ceil(8)),
            body: BodyLimits {
                max_size: config.max_size.as_u64(),
                timeout: config.upload_timeout,
                pause,
                min_chunk: 256,
            },
        }
    }
}
