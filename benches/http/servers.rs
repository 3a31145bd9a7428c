//! Server processes: the service, and the variants it is compared with.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::Path,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path as UrlPath, State},
    http::{HeaderMap, StatusCode, header},
    routing::{get, post},
};
use pet_inventory::{
    api,
    app::App,
    config::{CommandLine, Config},
    domain::clock::Clock,
    server::Shutdown,
    telemetry,
};
use serde::{Deserialize, Serialize};
use sqlx::{FromRow, PgPool, postgres::PgPoolOptions};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    net::TcpListener,
    process::{Child, ChildStdout, Command},
};

/// Variant of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The obvious implementation with axum and sqlx
    Naive,
    /// The service's layers around a response from memory
    Static,
}

/// A running server, killed when dropped.
pub struct Server {
    pub pid: u32,
    pub address: String,
    _child: Child,
    /// Kept open, since the server may write more.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts the real program, with a configuration file if `config` is not empty.
    pub async fn service(
        program: &Path,
        url: &str,
        folder: &Path,
        settings: &[(&str, &str)],
        config: &str,
    ) -> Self {
        // Thousands of connections need as many file descriptors.
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n 65536 2>/dev/null; exec \"$0\" \"$@\""])
            .arg(program)
            .arg("serve")
            .env("PET_INVENTORY__OPERATIONS__LISTEN", "127.0.0.1:0")
            .envs(settings.iter().copied());
        if !config.is_empty() {
            let file = folder.join("service.toml");
            fs::write(&file, config).expect("written");
            command.arg("--config").arg(file);
        }
        Self::start(command, url, &folder.join("service.log")).await
    }

    /// Starts this program as another variant.
    pub async fn other(kind: Kind, url: &str, folder: &Path, keys: &[String]) -> Self {
        let name = match kind {
            Kind::Naive => "naive",
            Kind::Static => "static",
        };
        let mut command = Command::new(std::env::current_exe().expect("a name"));
        command
            .args(["--serve", name])
            .env("PET_INVENTORY__OPERATIONS__LISTEN", "127.0.0.1:0")
            .env("BENCH_KEYS", keys.join(" "));
        Self::start(command, url, &folder.join(format!("{name}.log"))).await
    }

    async fn start(mut command: Command, url: &str, log: &Path) -> Self {
        let log = File::create(log).expect("a log");
        let mut child = command
            .env("DATABASE_URL", url)
            .env("PET_INVENTORY__SERVER__LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("a server");
        let stdout = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        loop {
            let line = lines.next_line().await.expect("text").expect("it starts");
            if let Some((_, rest)) = line.split_once("http://") {
                return Self {
                    pid: child.id().expect("it runs"),
                    address: rest.split('/').next().unwrap_or_default().to_owned(),
                    _child: child,
                    _stdout: lines,
                };
            }
        }
    }
}

/// Runs a variant in this process.
pub async fn serve(kind: Kind) {
    match kind {
        Kind::Naive => naive().await,
        Kind::Static => fixed().await,
    }
}

async fn fixed() {
    const PET: &str = r#"{"id":4711,"category":{"id":1,"name":"Category 1"},"name":"Pet 4711","photoUrls":["https://example.com/photos/4711.jpg"],"tags":[{"id":1,"name":"common"},{"id":2,"name":"group-211"}],"status":"available"}"#;
    async fn response() -> ([(header::HeaderName, &'static str); 2], Bytes) {
        let headers = [
            (header::CONTENT_TYPE, "application/json"),
            (header::ETAG, "\"4711\""),
        ];
        (headers, Bytes::from_static(PET.as_bytes()))
    }
    let config = Config::load(&CommandLine::default()).expect("a configuration");
    let _telemetry = telemetry::start(&config).expect("a log");
    let mut operations = api::operations();
    for route in &mut operations.routes {
        if route.path == "/api/v3/pet/{petId}" {
            route.methods = get(response);
        }
    }
    let app = App::build_with(config, Clock::system(), operations)
        .await
        .expect("a service");
    println!("http://{}", app.local_addr());
    app.run(Shutdown::default()).await.expect("a clean stop");
}

#[derive(Clone)]
struct Naive {
    pool: PgPool,
    callers: Arc<HashMap<String, i64>>,
}

impl Naive {
    fn caller(&self, headers: &HeaderMap) -> Result<i64, StatusCode> {
        let key = headers.get("api_key").and_then(|key| key.to_str().ok());
        key.and_then(|key| self.callers.get(key))
            .copied()
            .ok_or(StatusCode::UNAUTHORIZED)
    }
}

#[derive(Serialize, Deserialize)]
struct Label {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

#[derive(FromRow, Serialize)]
struct Pet {
    id: i64,
    #[sqlx(json)]
    #[serde(flatten)]
    details: Details,
    status: String,
}

#[derive(Deserialize)]
struct NewPet {
    #[serde(flatten)]
    details: Details,
    #[serde(default = "available")]
    status: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<Label>,
    name: String,
    #[serde(default)]
    photo_urls: Vec<String>,
    #[serde(default)]
    tags: Vec<Label>,
}

fn available() -> String {
    "available".to_owned()
}

fn failed(_: sqlx::Error) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

type Answer = Result<(StatusCode, [(header::HeaderName, &'static str); 1], Vec<u8>), StatusCode>;

fn json(status: StatusCode, pet: &Pet) -> Answer {
    let json = serde_json::to_vec(pet).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], json))
}

async fn naive() {
    async fn read(
        State(naive): State<Naive>,
        headers: HeaderMap,
        UrlPath(id): UrlPath<i64>,
    ) -> Answer {
        naive.caller(&headers)?;
        let pet = sqlx::query_as("select id, details, status from pets where id = $1")
            .bind(id)
            .fetch_optional(&naive.pool)
            .await
            .map_err(failed)?
            .ok_or(StatusCode::NOT_FOUND)?;
        json(StatusCode::OK, &pet)
    }
    async fn add(State(naive): State<Naive>, headers: HeaderMap, body: Bytes) -> Answer {
        naive.caller(&headers)?;
        let new: NewPet = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
        let pet = sqlx::query_as(
            "insert into pets (id, status, details)
             values (nextval('pet_ids'), $1, $2)
             returning id, details, status",
        )
        .bind(new.status)
        .bind(sqlx::types::Json(new.details))
        .fetch_one(&naive.pool)
        .await
        .map_err(failed)?;
        json(StatusCode::CREATED, &pet)
    }
    let url = std::env::var("DATABASE_URL").expect("set by the benchmark");
    let pool = PgPoolOptions::new()
        .max_connections(16)
        // Other rows need the connections.
        .idle_timeout(Duration::from_secs(10))
        // A ping before each use would make it slower by a seventh.
        .test_before_acquire(false)
        .connect(&url)
        .await
        .expect("a database");
    let callers = std::env::var("BENCH_KEYS").unwrap_or_default();
    let callers = callers.split(' ').map(|key| (key.to_owned(), 1)).collect();
    let router = Router::new()
        .route("/api/v3/pet/{petId}", get(read))
        .route("/api/v3/pet", post(add))
        .with_state(Naive {
            pool,
            callers: Arc::new(callers),
        });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("http://{}", listener.local_addr().expect("an address"));
    axum::serve(listener, router).await.expect("it serves");
}
