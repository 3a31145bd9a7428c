//! GET by id over HTTP/2 with 64 streams, compared with HTTP/1 by the same client: h2load (Debian package `nghttp2-client`).

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    load::{Load, Run, require},
    stage::{Stage, Variant, relate},
};

/// 64 requests in progress: one on each connection, or 16 streams on each of 4 connections.
const HTTP1: &[&str] = &["--h1", "-c64"];
const HTTP2: &[&str] = &["-c4", "-m16"];

/// Requests of h2load.
#[derive(Debug)]
pub struct H2load {
    options: &'static [&'static str],
    /// Lines of paths.
    paths: PathBuf,
    key: String,
}

/// Measures both protocols.
pub async fn row(stage: &Stage<'_>) {
    require("h2load", "nghttp2-client");
    let paths = paths(stage.folder(), stage.pets);
    let variant = |name: &str, options| Variant {
        name: name.to_owned(),
        stage,
        connections: 64,
        load: Load::H2load(H2load {
            options,
            paths: paths.clone(),
            key: stage.keys[0].clone(),
        }),
    };
    let variants = [variant("HTTP/1", HTTP1), variant("HTTP/2", HTTP2)];
    relate("http2", "rate", &variants).await;
}

fn paths(folder: &Path, pets: u32) -> PathBuf {
    let mut paths = String::new();
    for number in 0..10_000_u64 {
        // A prime step, so that the pets are spread over the table.
        let id = number * 7_919 % u64::from(pets) + 1;
        writeln!(paths, "/api/v3/pet/{id}").expect("text");
    }
    let file = folder.join("h2load.paths");
    fs::write(&file, paths).expect("written");
    file
}

impl H2load {
    pub async fn run(&self, address: &str, seconds: u32) -> Run {
        let output = tokio::process::Command::new("h2load")
            .args(self.options)
            .args(["-t2", "-D", &seconds.to_string()])
            .arg("-B")
            .arg(format!("http://{address}"))
            .arg("-H")
            .arg(format!("api_key: {}", self.key))
            .arg("-i")
            .arg(&self.paths)
            .output()
            .await
            .expect("h2load");
        let text = String::from_utf8_lossy(&output.stdout);
        let rate = field(&text, "finished in", " req/s");
        let done = field(&text, "status codes:", " 2xx");
        let failed = ["failed", "errored", "timeout"].map(|name| {
            let name = format!(" {name}");
            field(&text, "requests:", &name)
        });
        assert!(
            failed.iter().sum::<f64>() < 1.0,
            "h2load: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Run {
            requests: done,
            rate,
            ..Run::default()
        }
    }
}

/// Returns the number before `unit` in the line that begins with `name`.
fn field(text: &str, name: &str, unit: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split(unit).next()?.rsplit(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("h2load printed no{unit}: {text}"))
}
