//! Benchmarks of per-request work without I/O: `cargo bench --bench pure`.

#![allow(
    clippy::expect_used,
    reason = "a failed benchmark panics with the reason"
)]

use std::time::Duration;

use divan::{Bencher, black_box};
use pet_inventory::{
    api,
    auth::secret::{Secret, sha256},
    config::Config,
    db::{ConnectOptions, Database, credentials::CredentialKind, limits::Lease},
    domain::{
        caller::{Caller, CallerId, Scopes},
        clock::Clock,
        id::PetId,
        image::ImageType,
        pet::{Status, StoredPet, Version},
        plan::{Plan, PlanLimits},
    },
    images::reader::Reader,
    limits::{Limiter, caller::CallerState},
};

fn main() {
    divan::main();
}

fn caller(plan: Plan) -> Caller {
    Caller {
        id: Some(CallerId(7)),
        name: "acme".parse().expect("a name"),
        plan,
        scopes: Scopes::all(),
    }
}

#[divan::bench]
fn admitted_without_a_limit(bencher: Bencher<'_, '_>) {
    let config = Config::defaults().expect("the defaults");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let database = Database::new(ConnectOptions::new_without_pgpass(), &config.database);
    let limiter = Limiter::new(config.plans, database, Clock::system());
    let caller = caller(Plan::Enterprise);
    bencher.bench_local(|| limiter.admit(black_box(&caller), None));
}

/// Returns the state of a caller with a lease for a day.
fn leased(granted: u32) -> CallerState {
    let day = 86_400.0;
    let mut state = CallerState::default();
    let limits = PlanLimits {
        per_minute: Some(u32::MAX),
        per_day: Some(u32::MAX),
        in_flight: None,
    };
    state.set_limits(&limits, Duration::ZERO);
    let lease = Lease {
        granted,
        slice_ends_in: day,
        minute_used: granted,
        minute_frees_in: day,
        ..Lease::default()
    };
    state.succeed(lease, Duration::ZERO, Duration::ZERO);
    state
}

#[divan::bench]
fn admitted_from_a_lease(bencher: Bencher<'_, '_>) {
    let mut state = leased(u32::MAX);
    bencher.bench_local(|| state.admit(black_box(Duration::from_secs(1))));
}

#[divan::bench]
fn key_read(bencher: Bencher<'_, '_>) {
    let key = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
    bencher
        .bench_local(|| Secret::parse(black_box(key.expose()), &CredentialKind::BEARERS).is_some());
}

#[divan::bench]
fn key_hashed(bencher: Bencher<'_, '_>) {
    let key = Secret::generate(CredentialKind::ApiKey).expect("random numbers");
    bencher.bench_local(|| sha256(black_box(key.expose())));
}

#[divan::bench]
fn request_id() -> impl Sized {
    api::request_context::random_id()
}

#[divan::bench]
fn pet_as_json(bencher: Bencher<'_, '_>) {
    let id = PetId::new(4711).expect("an id");
    let details = r#"{"category":{"id":1,"name":"Dogs"},"name":"Rex","photoUrls":["https://example.com/rex.jpg"],"tags":[{"id":1,"name":"friendly"},{"id":2,"name":"young"}]}"#;
    bencher.bench_local(|| {
        StoredPet::new(
            id,
            Version(1),
            Status::Available,
            black_box(details).as_bytes(),
        )
    });
}

/// Returns a file of about 10 MiB that is valid up to its pixels, which are noise.
fn image_file(kind: ImageType) -> Vec<u8> {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    });
    let noise: Vec<u8> = noise.take(10 << 20).collect();
    let length = u32::try_from(noise.len()).expect("a short file");
    let png_chunk = |kind: &[u8; 4], data: &[u8]| {
        let length = u32::try_from(data.len()).expect("a short chunk");
        let typed = [kind, data].concat();
        let crc = crc32fast::hash(&typed).to_be_bytes();
        [&length.to_be_bytes()[..], &typed, &crc].concat()
    };
    match kind {
        ImageType::Png => {
            let header = png_chunk(b"IHDR", b"\0\0\x04\0\0\0\x04\0\x08\x02\0\0\0");
            let pixels = noise
                .chunks(8 << 10)
                .flat_map(|data| png_chunk(b"IDAT", data));
            let chunks = header
                .into_iter()
                .chain(pixels)
                .chain(png_chunk(b"IEND", b""));
            b"\x89PNG\r\n\x1a\n".iter().copied().chain(chunks).collect()
        }
        ImageType::Jpeg => {
            let header = b"\xff\xd8\xff\xc0\0\x0b\x08\x04\0\x04\0\x01\x01\x11\0\xff\xda\0\x08\x01\x01\0\0\x3f\0";
            let stuffed = noise.split_inclusive(|byte| *byte == 0xFF);
            [
                header,
                &stuffed.collect::<Vec<_>>().join(&0)[..],
                b"\0\xff\xd9",
            ]
            .concat()
        }
        ImageType::Gif => {
            let header = b"GIF89a\0\x04\0\x04\0\0\0\x2c\0\0\0\0\0\x04\0\x04\0\x08";
            let blocks = noise
                .chunks_exact(255)
                .flat_map(|data| [&[255], data].concat());
            let blocks: Vec<_> = blocks.collect();
            [&header[..], &blocks, b"\0\x3b"].concat()
        }
        ImageType::WebP => {
            let head = b"VP8L\0\0\0\0\x2f\xff\x03\0\x01";
            let mut file = [b"RIFF\0\0\0\0WEBP", &head[..], &noise[5..]].concat();
            file[4..8].copy_from_slice(&(length + 12).to_le_bytes());
            file[16..20].copy_from_slice(&length.to_le_bytes());
            file
        }
    }
}

#[divan::bench(args = ImageType::ALL)]
fn image_checked(bencher: Bencher<'_, '_>, kind: ImageType) {
    let file = image_file(kind);
    bencher.bench_local(|| {
        let mut reader = Reader::default();
        for piece in black_box(&file).chunks(64 << 10) {
            reader.feed(piece).expect("an image");
        }
        reader.finish().expect("an image")
    });
}
