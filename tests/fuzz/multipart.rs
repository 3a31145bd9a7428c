//! Multipart forms: the division into chunks changes nothing, any data comes out as it went in, and memory is bounded.

use std::{convert::Infallible, sync::LazyLock};

use axum::body::{Body, Bytes};
use futures_util::stream;
use pet_inventory::{
    api::{
        error::Error,
        images::multipart::{Multipart, Part},
    },
    config::Config,
    limits::resources::Uploads,
};
use tokio::runtime::{Builder, Runtime};

crate::target!("multipart", check);

static UPLOADS: LazyLock<Uploads> = LazyLock::new(|| {
    let config = Config::defaults().expect("a configuration").images;
    Uploads::new(&config, config.upload_timeout)
});
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime")
});

/// End of every part of the form that the input is put into.
const DELIMITER: &[u8] = b"\r\n--limit";

/// Checks the parameters of the media type and, in the next lines, the body.
fn check(input: &[u8]) {
    let (parameters, body) = crate::split(input, b'\n');
    let content_type = format!(
        "multipart/form-data;{}",
        String::from_utf8_lossy(parameters)
    );
    let whole = read(&content_type, body, body.len());
    // More chunks are refused.
    let min_piece = 1 + body.len() / 1_000;
    for piece in [min_piece, min_piece + 1, 7 * min_piece, body.len() / 2] {
        let read = read(&content_type, body, piece);
        assert_eq!(
            format!("{read:?}"),
            format!("{whole:?}"),
            "in pieces of {piece}"
        );
    }
    if let Ok(parts) = whole {
        let data: usize = parts.iter().map(|(_, data)| data.len()).sum();
        assert!(data <= body.len() && parts.len() <= 32);
    }

    let form = [b"--limit\r\n\r\n", input, DELIMITER, b"--"].concat();
    // The data may end with the beginning of a delimiter.
    let at = form
        .windows(DELIMITER.len())
        .position(|bytes| bytes == DELIMITER);
    if at == Some(form.len() - DELIMITER.len() - 2) {
        let parts = read("multipart/form-data; boundary=limit", &form, min_piece + 2);
        let parts = parts.expect("a form");
        assert_eq!(parts, [(Part::default(), input.to_vec())]);
    }
}

/// Reads a form that arrives in chunks of `piece` bytes.
fn read(content_type: &str, body: &[u8], piece: usize) -> Result<Vec<(Part, Vec<u8>)>, Error> {
    let pieces: Vec<_> = body
        .chunks(piece.max(1))
        .map(Bytes::copy_from_slice)
        .collect();
    let stream = stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
    let body_stream = Body::from_stream(stream);
    let read = async {
        let mut form = Multipart::new(content_type, body_stream, &UPLOADS)?;
        let mut parts = Vec::new();
        while let Some(part) = form.next_part().await? {
            let mut data = Vec::new();
            while let Some(bytes) = form.data().await? {
                data.extend_from_slice(&bytes);
            }
            parts.push((part, data));
        }
        Ok(parts)
    };
    let (runtime, _) = (&*RUNTIME, &*UPLOADS);
    let (parts, memory) = crate::measure(|| runtime.block_on(read));
    // The buffer and what is returned, with room to grow.
    let max_memory = 6 * body.len() as u64 + 16_384;
    assert!(memory <= max_memory, "{memory} bytes for {}", body.len());
    parts
}
