//! Benchmark rows for images of 1 MB, compared with nginx on the same folder.

use std::{
    fmt::Write as _,
    fs,
    net::TcpListener,
    ops::Range,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use image::{ExtendedColorType, codecs::jpeg::JpegEncoder};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::{
    load::{Load, Template},
    stage::{Opponent, Row, Stage, Work},
};

const CONNECTIONS: u32 = 8;

/// Measures uploads, and repeated reads of one image.
pub async fn rows(stage: &Stage<'_>) {
    let folder = stage.folder();
    let Some(nginx) = Nginx::start(folder).await else {
        println!("no nginx in PATH or /usr/sbin: its rows are left out (apt-get install nginx)");
        return;
    };
    let image = folder.join("image.jpg");
    fs::write(&image, megabyte()).expect("written");
    let jpeg = r#"["content-type"] = "image/jpeg""#;
    let upload = |method, path, last| Template {
        method,
        headers: jpeg,
        ..Template::get(path, &stage.keys, last)
    };
    let path = "/api/v3/pet/<n>/uploadImage";
    let service_load = upload("POST", path, stage.pets);
    let service_load = Load::of_file(folder, "upload", &service_load, &image, MARK);
    // nginx overwrites 100 files, so that the disk does not fill up.
    let nginx_load = upload("PUT", "/put/<n>", 100);
    let nginx_load = Load::of_file(folder, "put", &nginx_load, &image, MARK);
    compare(
        "uploadFile",
        stage,
        (&service_load, None),
        (&nginx, &nginx_load),
    )
    .await;

    // Each database has its own images.
    let images = stage.database.image_of_each().await;
    let load = |(pet, id, _): &(i64, String, String)| {
        let name = format!("image {id}");
        stage.get(
            &name,
            &format!("/api/v3/pet/{pet}/images/{id}"),
            &stage.keys,
        )
    };
    let loads: Vec<_> = images.iter().map(load).collect();
    let nginx_load = stage.get("file", &format!("/images/{}", images[0].2), &stage.keys);
    compare(
        "getImage",
        stage,
        (&loads[0], loads.get(1)),
        (&nginx, &nginx_load),
    )
    .await;
}

async fn compare(
    name: &str,
    stage: &Stage<'_>,
    (load, load_before): (&Load, Option<&Load>),
    (nginx, file): (&Nginx, &Load),
) {
    let opponent = Opponent {
        name: "nginx",
        work: Work::Address(&nginx.address, file),
    };
    let row = Row {
        load,
        load_before,
        connections: CONNECTIONS,
        prepare: &[],
    };
    stage.compare(name, &row, &[opponent]).await;
}

/// Range of bytes that differs in each upload, so that no two uploads have the same content.
const MARK: Range<usize> = 6..22;

/// Returns a JPEG of noise, which does not compress, with a comment that holds the mark.
fn megabyte() -> Vec<u8> {
    const SIDE: u32 = 700;
    let mut state = 1_u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    let pixels: Vec<u8> = (0..SIDE * SIDE * 3).map(|_| noise()).collect();
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, 94)
        .encode(&pixels, SIDE, SIDE, ExtendedColorType::Rgb8)
        .expect("a JPEG");
    let comment = [&b"\xff\xfe\x00\x12"[..], &[b'0'; 16]].concat();
    jpeg.splice(2..2, comment);
    println!("an image of {:.2} MB", jpeg.len() as f64 / 1e6);
    jpeg
}

/// An nginx that serves a folder, stopped when dropped.
struct Nginx {
    address: String,
    child: Child,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGKILL would leave its workers running.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

impl Nginx {
    async fn start(folder: &Path) -> Option<Self> {
        let program = ["nginx", "/usr/sbin/nginx"].into_iter().find(|program| {
            let version = std::process::Command::new(program)
                .arg("-v")
                .stderr(Stdio::null())
                .status();
            version.is_ok_and(|status| status.success())
        })?;
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let root = folder.display();
        fs::create_dir_all(folder.join("put")).expect("a folder");
        let mut config = String::new();
        write!(
            config,
            "daemon off; user root; worker_processes 2; pid {root}/nginx.pid; error_log {root}/nginx.err;
             events {{ worker_connections 1024; }}
             http {{
                 access_log {root}/nginx.log; sendfile on; tcp_nopush on; keepalive_requests 1000000;
                 client_max_body_size 11m; client_body_temp_path {root}/nginx.body;
                 server {{ listen {address}; root {root}; location /put/ {{ dav_methods PUT; }} }}
             }}"
        )
        .expect("text");
        let file: PathBuf = folder.join("nginx.conf");
        fs::write(&file, config).expect("written");
        let child = Command::new(program).arg("-c").arg(&file).spawn().ok()?;
        while tokio::net::TcpStream::connect(&address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(Self { address, child })
    }
}
