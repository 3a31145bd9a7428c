//! Clients that generators make from the service's own document, and from the public Petstore v3 one.
//!
//! `.ci/setup --all` installs the generators, and `.ci/setup --more` those of one test; the files `life*` and `Life.java` are
//! what the clients do. No flag skips a check of a generator, and the clients are compiled strictly, with these exceptions:
//! `mypy.ini` omits the file of the HTTP client of openapi-python-client, which has errors for every document, and javac's
//! warnings of deprecated API and of annotations without a processor are no errors. swagger-client makes no types. The public
//! document is not part of the repository: `PETSTORE_OPENAPI` is its path.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a failed test panics with the reason; its settings are the machine's"
)]

use std::{fs, path::PathBuf, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use tempfile::TempDir;
use test_support::{Home, images::png, process::Service, repository};
use tokio::process::Command;

/// Maximum duration of a program. The generator starts Java and writes about fifty files; the Rust client has a hundred
/// crates.
const TIMEOUT: Duration = Duration::from_mins(5);
/// A key with all scopes.
const KEY: &str = "special-key";
/// The archive of openapi-generator, which also has the libraries of its Java client except these.
const JAVA_LIBRARIES: &str =
    "/usr/share/java/httpmime.jar:/usr/share/java/geronimo-annotation-1.3-spec.jar";

fn tools() -> PathBuf {
    repository().join("target/outside-tools")
}

/// Folder with a document, this folder's files, and clients.
struct Workshop {
    folder: TempDir,
    document: PathBuf,
}

impl Workshop {
    /// Creates a folder within that of Node's packages, where the clients find them.
    fn new(document: PathBuf) -> Self {
        let folder = tempfile::tempdir_in(tools().join("generators"));
        let folder = folder.expect("a folder: run .ci/setup --all");
        let own = repository().join("tests/system/generated_clients");
        for file in fs::read_dir(own).expect("the folder").flatten() {
            fs::copy(file.path(), folder.path().join(file.file_name())).expect("a copy");
        }
        Self { folder, document }
    }

    /// Runs commands in the folder, one after the other. `DOCUMENT` stands for the document.
    async fn run(&self, commands: &[&str]) {
        let bins = ["bin", "generators/node_modules/.bin"].map(|bin| tools().join(bin));
        let path = std::env::var_os("PATH").expect("PATH");
        let path = std::env::join_paths(bins.into_iter().chain(std::env::split_paths(&path)));
        let path = path.expect("a path");
        for command in commands {
            let mut shell = Command::new("sh");
            shell
                .args(["-euc", command])
                .current_dir(self.folder.path())
                .env("PATH", &path)
                .env("DOCUMENT", &self.document)
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .kill_on_drop(true);
            let output = tokio::time::timeout(TIMEOUT, shell.output()).await;
            let output = output.expect("it ends").expect("a shell");
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(output.status.success(), "{command}\n{text}");
        }
    }
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

/// Starts the service for clients that read the whole document between two requests. On a busy machine, this takes longer than a
/// connection may wait for its next request, and then they write to one that is being closed.
async fn serve(home: &Home) -> Service {
    home.serve_with(&[("PET_INVENTORY__SERVER__HEADER_TIMEOUT", "5m")])
        .await
}

/// Returns the arguments of a client: the service, a key, and an image.
fn arguments(host: &str) -> String {
    let image = BASE64_STANDARD.encode(png(20, 20));
    format!("{host} {KEY} {image}")
}

/// Generates a Python client with openapi-generator and runs `life.py` with it.
async fn run_python(home: &Home, document: PathBuf, package: &str) {
    let service = serve(home).await;
    let workshop = Workshop::new(document);
    let life = arguments(&format!("http://{}", service.address));
    workshop
        .run(&[
            &format!("openapi-generator-cli generate -g python -i $DOCUMENT --package-name {package} -o client"),
            &format!("PYTHONPATH=client python life.py {package} {life}"),
        ])
        .await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_of_our_document_manages_a_pet_an_order_a_user_and_an_image() {
    let home = Home::new();
    let document = our_document(&home).await;
    run_python(&home, document, "petstore_ours").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_client_of_the_public_document_manages_a_pet_an_order_a_user_and_an_image() {
    let home = Home::new();
    run_python(&home, public_document(), "petstore_public").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_collection_manage_a_pet_an_order_a_user_and_an_image() {
    let home = Home::new();
    let workshop = Workshop::new(our_document(&home).await);
    let service = serve(&home).await;
    let host = format!("http://{}", service.address);
    let life = arguments(&host);
    let chain = repository().join("config/collection.js");
    let run = format!(
        "newman run collection.json --env-var baseUrl={host}/api/v3 --env-var apiKey={KEY} --reporters json"
    );
    let postman = [
        "openapi2postmanv2 -s $DOCUMENT -o collection.json \
         -O folderStrategy=Tags,parametersResolution=Example,enableOptionalParameters=false",
        &format!("node '{}' collection.json", chain.display()),
        &format!("{run} --reporter-json-export first.json"),
        &format!("{run} --reporter-json-export second.json"),
        "python collection.py $DOCUMENT first.json second.json",
    ];
    let jar = "$(python -c 'import openapi_generator_cli as it; print(it.__path__[0])')/openapi-generator.jar";
    let jars = format!("classpath={jar}:{JAVA_LIBRARIES}");
    let java = [
        "openapi-generator-cli generate -g java --library native -p openApiNullable=false -i $DOCUMENT -o java",
        // The libraries are newer than those that the client is written for.
        &format!(
            "{jars}; javac -encoding UTF-8 -Werror -Xlint:all,-classfile,-deprecation,-path,-processing -proc:none -d classes \
             -cp $classpath Life.java $(find java/src/main -name '*.java')"
        ),
        &format!("{jars}; java -cp $classpath:classes Life {life}"),
    ];
    let typescript = [
        "openapi-generator-cli generate -g typescript-fetch -i $DOCUMENT -o typescript_fetch",
        "openapi-typescript $DOCUMENT -o openapi_typescript.ts",
        "openapi-ts -i $DOCUMENT -o hey_api",
        "tsc -p .",
        &format!("node js/life_typescript_fetch.js {life}"),
        &format!("node js/life_openapi_fetch.js {life}"),
        &format!("node js/life_hey_api.js {life}"),
        &format!("node life_swagger_client.js {life}"),
    ];
    let python = [
        "openapi-python-client generate --path $DOCUMENT --output-path pet_inventory_client --meta none \
         --fail-on-warning --config openapi_python_client.yaml",
        "mypy life_openapi_python_client.py pet_inventory_client",
        &format!("python life_openapi_python_client.py {life}"),
        &format!("python documents.py {host}"),
    ];
    tokio::join!(
        workshop.run(&java),
        workshop.run(&typescript),
        workshop.run(&python),
        workshop.run(&postman)
    );
    service.stop().await;
}

/// With a key of plan Free.
#[tokio::test(flavor = "multi_thread")]
async fn agent_manages_a_pet_through_the_mcp_bridge_and_is_limited() {
    let home = Home::new();
    let service = serve(&home).await;
    let create =
        "keys create --caller agent --plan free --scope read:pets --scope write:pets --json";
    let create: Vec<&str> = create.split(' ').collect();
    let created = home.run(&create).await.is(0).stdout;
    let created: serde_json::Value = serde_json::from_str(&created).expect("JSON");
    let key = created["key"].as_str().expect("a key");
    let workshop = Workshop::new(PathBuf::new());
    let bridge = repository().join("config/mcp_bridge.py");
    workshop
        .run(&[&format!(
            "python agent.py '{}' http://{} {key}",
            bridge.display(),
            service.address
        )])
        .await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_more_generators_manage_a_pet_an_order_a_user_and_an_image() {
    let installed = tools().join("generators/more-installed");
    assert!(installed.exists(), "run .ci/setup --more");
    let home = Home::new();
    let workshop = Workshop::new(our_document(&home).await);
    let service = serve(&home).await;
    let host = format!("http://{}", service.address);
    let life = arguments(&host);
    let go = [
        "openapi-generator-cli generate -g go -i $DOCUMENT -o go/src/petstore",
        // Its tests need a package that is no part of the client. Packages come from Debian, without a module proxy.
        "rm -r go/src/petstore/test && mkdir go/src/life && mv life.go go/src/life",
        &format!(
            "export GO111MODULE=off GOPATH=$PWD/go:/usr/share/gocode; go vet petstore life; go run go/src/life/life.go {life}"
        ),
    ];
    let ruby = [
        "openapi-generator-cli generate -g ruby -i $DOCUMENT -o ruby",
        "find ruby/lib -name '*.rb' -exec ruby -c {} +",
        &format!("ruby -I ruby/lib life.rb {life}"),
    ];
    let php = [
        "openapi-generator-cli generate -g php -i $DOCUMENT -o php",
        "find php/lib -name '*.php' -exec php -l {} ';'",
        &format!("php life.php {life}"),
    ];
    // Its packages stay compiled.
    let compiled = tools().join("generators/life-rust");
    let rust = [
        "openapi-generator-cli generate -g rust -i $DOCUMENT -o rust/client",
        "mv life.rs rust && mv life.toml rust/Cargo.toml",
        &format!(
            "CARGO_TARGET_DIR={} cargo run --quiet --manifest-path rust/Cargo.toml -- {life}",
            compiled.display()
        ),
    ];
    let typescript = [
        &format!("HOST={host} orval --config orval.config.js"),
        "openapi-zod-client $DOCUMENT -o zodios.ts",
        "tsc -p tsconfig.more.json",
        &format!("node js/life_orval.js {life}"),
        &format!("node js/life_zod.js {life}"),
    ];
    tokio::join!(
        workshop.run(&go),
        workshop.run(&ruby),
        workshop.run(&php),
        workshop.run(&rust),
        workshop.run(&typescript)
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readme_lists_every_difference_from_the_public_document() {
    let home = Home::new();
    let workshop = Workshop::new(our_document(&home).await);
    let root = repository().display();
    let public = public_document();
    let public = public.display();
    workshop
        .run(&[&format!(
            "python differences.py '{public}' $DOCUMENT '{root}/.github/PETSTORE.md'"
        )])
        .await;
}
