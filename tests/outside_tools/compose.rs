//! `config/compose.yaml` as docker-compose reads it: missing secrets, confinement, and the service's settings.

use std::{path::Path, process::Stdio};

use serde_json::Value;
use test_support::{Output, process::Home};
use tokio::{io::AsyncWriteExt as _, process::Command};

const FILE: &str = include_str!("../../config/compose.yaml");
const SECRETS: [&str; 3] = ["POSTGRES_PASSWORD", "S3_SECRET_KEY", "BOOTSTRAP_API_KEY"];

/// Runs `docker-compose config` with these secrets set.
async fn read(secrets: &[&str]) -> Output {
    let mut command = Command::new("docker-compose");
    command
        .args(["--file", "-", "config"])
        .current_dir(folder())
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(
            secrets
                .iter()
                .map(|name| (name, "0123456789abcdef0123456789abcdef")),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .expect("docker-compose is missing: run .ci/setup --all");
    // Debian's docker-compose is older than the key `name`.
    let file = FILE.replace("name: pet-inventory\n", "");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(file.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("its end");
    Output {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/config"))
}

/// Returns the file with all variables and anchors resolved.
async fn resolved() -> Value {
    const TO_JSON: &str =
        "import json, sys, yaml; json.dump(yaml.safe_load(sys.argv[1]), sys.stdout)";
    let yaml = read(&SECRETS).await.is(0).stdout;
    // Debian's docker-compose depends on this Python and its yaml module.
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", TO_JSON, &yaml]);
    let json = Output::of(python).await.is(0).stdout;
    serde_json::from_str(&json).expect("JSON")
}

#[tokio::test]
async fn compose_file_reports_a_missing_secret() {
    for missing in SECRETS {
        let set: Vec<_> = SECRETS
            .into_iter()
            .filter(|name| *name != missing)
            .collect();
        let output = read(&set).await;
        assert_ne!(output.code, Some(0), "{output:?}");
        let wanted = format!("{missing} is not set. Put it into .env");
        assert!(output.stderr.contains(&wanted), "{output:?}");
    }
}

#[tokio::test]
async fn compose_services_are_confined_and_start_in_order() {
    let services = resolved().await["services"].take();
    let services = services.as_object().expect("services");
    for (name, service) in services {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{name}");
        assert_eq!(
            service["security_opt"][0], "no-new-privileges:true",
            "{name}"
        );
        assert_eq!(service["restart"], "unless-stopped", "{name}");
        assert_eq!(service.get("ports").is_some(), name == "nginx", "{name}");
        let ours = service["image"] == "pet-inventory";
        assert_eq!(
            service.get("healthcheck").is_none(),
            ours,
            "{name}: ours has its own"
        );
        let after = service["depends_on"].as_object();
        for (first, how) in after.into_iter().flatten() {
            assert!(services.contains_key(first), "{name} waits for {first}");
            assert_eq!(
                how["condition"], "service_healthy",
                "{name} waits for {first}"
            );
        }
    }
    let nginx = include_str!("../../config/nginx.conf");
    for replica in services.keys().filter(|name| name.starts_with("service-")) {
        assert!(
            nginx.contains(&format!("server {replica}:8080 ")),
            "{replica}"
        );
        assert!(
            services["nginx"]["depends_on"].get(replica).is_some(),
            "{replica}"
        );
    }
}

#[tokio::test]
async fn service_accepts_the_settings_of_the_compose_file() {
    let service = resolved().await["services"]["service-1"].take();
    let home = Home::new();
    let mut command = home.command(["--config", "production.toml", "config", "show"]);
    command.current_dir(folder());
    let variables = service["environment"].as_object().expect("variables");
    for (name, value) in variables {
        command.env(name, value.as_str().expect("text"));
    }
    for image in [
        "PET_INVENTORY__SERVER__LISTEN",
        "PET_INVENTORY__OPERATIONS__LISTEN",
    ] {
        command.env_remove(image);
    }
    let shown = Output::of(command).await.is(0).stdout;
    for wanted in [
        "0.0.0.0:8080",
        "http://localhost:8000",
        "s3://images",
        "172.30.80.10",
    ] {
        assert!(shown.contains(wanted), "no {wanted} in {shown}");
    }
    assert_eq!(service["command"][0], "--config", "{service}");
}
