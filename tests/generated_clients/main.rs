//! Clients that openapi-generator generates from the public Petstore v3 document and from the service's own.
//!
//! `.ci/setup --all` installs the generator; `life.py` is what the clients do. The public document is not part of the
//! repository: `PETSTORE_OPENAPI` is its path.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a failed test panics with the reason; its settings are the machine's"
)]

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use test_support::Home;
use tokio::process::Command;

/// Maximum duration of a program. The generator starts Java and writes about fifty files.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Returns a command for a program that `.ci/setup --all` installs.
fn tool(name: &str) -> Command {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/outside-tools/bin");
    let program = tools.join(name);
    assert!(program.exists(), "{name} is missing: run .ci/setup --all");
    Command::new(program)
}

/// Returns a command for a script beside this file, run by the installed Python.
fn script(name: &str) -> Command {
    let mut python = tool("python");
    python.arg(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/generated_clients")
            .join(name),
    );
    python
}

async fn run(command: &mut Command) {
    let output = tokio::time::timeout(TIMEOUT, command.kill_on_drop(true).output()).await;
    let output = output.expect("it ends").expect("the program");
    let text = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&text)
    );
}

fn public_document() -> PathBuf {
    let path = std::env::var_os("PETSTORE_OPENAPI");
    let path = path.expect("PETSTORE_OPENAPI must be the path of the public Petstore v3 document");
    fs::canonicalize(path).expect("the file that PETSTORE_OPENAPI names")
}

async fn our_document(home: &Home) -> PathBuf {
    let path = home.path().join("openapi.json");
    let document = home.run(&["openapi"]).await.is(0).stdout;
    fs::write(&path, document).expect("a file");
    path
}

/// Generates a client from a document and runs `life.py` with it.
async fn run_client(home: &Home, document: &Path, package: &str) {
    let client = home.path().join("client");
    let arguments: [&OsStr; 10] = [
        "generate".as_ref(),
        "--skip-validate-spec".as_ref(),
        "-g".as_ref(),
        "python".as_ref(),
        "-i".as_ref(),
        document.as_ref(),
        "--package-name".as_ref(),
        package.as_ref(),
        "-o".as_ref(),
        client.as_ref(),
    ];
    run(tool("openapi-generator-cli").args(arguments)).await;
    let service = home.serve().await;
    let host = format!("http://{}", service.address);
    let mut life = script("life.py");
    life.args([package, &host, "special-key"])
        .env("PYTHONPATH", &client);
    run(&mut life).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_generated_from_our_document_manages_a_pet_an_order_and_a_user() {
    let home = Home::new();
    let document = our_document(&home).await;
    run_client(&home, &document, "petstore_ours").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_generated_from_the_public_document_manages_a_pet_an_order_and_a_user() {
    let home = Home::new();
    run_client(&home, &public_document(), "petstore_public").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_lists_every_difference_from_the_public_document() {
    let home = Home::new();
    let ours = our_document(&home).await;
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    run(script("differences.py").args([public_document(), ours, readme])).await;
}
