//! Streams of changes, read by libraries behind a proxy that cuts connections: they miss nothing, and get nothing twice.

use test_support::*;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

/// Number of changes: the connection is cut after every third one.
const CHANGES: i64 = 40;
const PATIENCE: Duration = Duration::from_mins(3);

async fn reads_everything(library: &str) {
    let app = TestApp::start().await;
    let tools = repository().join("target/outside-tools/generators/node_modules/.bin/node");
    let mut reader = Command::new(tools)
        .arg("tests/system/outside_tools/event_sources.mjs")
        .args([library, &app.address.to_string(), &app.key])
        .arg(CHANGES.to_string())
        .current_dir(repository())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("node: run .ci/setup --all");
    let mut messages = BufReader::new(reader.stderr.take().expect("a pipe")).lines();
    let first = tokio::time::timeout(PATIENCE, messages.next_line()).await;
    let first = first.expect("in time").expect("a pipe");
    assert_eq!(first.as_deref(), Some("cut"), "{library}");
    tokio::spawn(async move {
        // A library may complain of each cut.
        while let Ok(Some(_)) = messages.next_line().await {}
    });
    // Some of them before the library has connected again.
    for id in 1..=CHANGES {
        app.add_pet(id).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let output = tokio::time::timeout(PATIENCE, reader.wait_with_output());
    let output = output.await.expect("in time").expect("an exit");
    let read: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let page = app.request(Method::GET, "/changes?kind=pet&limit=1000");
    let recorded = page.is(200).await.changes().into_iter();
    let recorded: Vec<_> = recorded.map(|change| change["position"].clone()).collect();
    assert_eq!(read["positions"], json!(recorded), "{library}");
    assert!(read["cuts"].as_i64() >= Some(10), "{library}: {read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn eventsource_misses_nothing() {
    reads_everything("eventsource").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn event_source_polyfill_misses_nothing() {
    reads_everything("event-source-polyfill").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn launchdarkly_eventsource_misses_nothing() {
    reads_everything("launchdarkly-eventsource").await;
}
