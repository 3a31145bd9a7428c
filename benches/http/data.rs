//! PostgreSQL with pets, callers and their keys.

use std::path::{Path, PathBuf};

use pet_inventory::{
    auth::secret::Secret,
    db::{ConnectOptions, credentials::CredentialKind},
    embedded_postgres::{Durability, EmbeddedPostgres, SearchPath},
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::Options;

/// An embedded PostgreSQL, removed with its folder when dropped.
pub struct Postgres {
    folder: tempfile::TempDir,
    server: EmbeddedPostgres,
}

impl Postgres {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let search = SearchPath {
            bin_dir: std::env::var_os("POSTGRES_BIN_DIR").map(PathBuf::from),
            path: std::env::var_os("PATH"),
        };
        let server =
            EmbeddedPostgres::start(&folder.path().join("data"), &search, Durability::Durable)
                .await
                .expect("an embedded PostgreSQL");
        Self { folder, server }
    }

    /// Returns the folder of logs and generated files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self) -> PathBuf {
        let options = self.server.connect_options();
        options.get_socket().expect("a socket").clone()
    }

    pub fn postmaster(&self) -> u32 {
        let file = self.folder.path().join("data/postgres/postmaster.pid");
        let text = std::fs::read_to_string(file).expect("a pid file");
        let pid = text.lines().next().and_then(|pid| pid.trim().parse().ok());
        pid.expect("a number")
    }

    /// Creates a database with `pets` pets, and one of an earlier build of the service if there is one: their schemas
    /// differ. Each build applies its own migrations.
    pub async fn database(&self, options: &Options, name: &str, pets: u32) -> Database {
        let database = self.empty_database(options, name).await;
        database.fill(pets).await;
        database.settle(pets).await;
        database
    }

    /// Creates the same databases without pets.
    pub async fn empty_database(&self, options: &Options, name: &str) -> Database {
        let server = self.server.connect_options();
        let mut connection = connect(&server).await;
        let mut replicas = Vec::new();
        let programs = [Some(&options.service), options.before.as_ref()];
        for (program, suffix) in programs.into_iter().flatten().zip(["", "_before"]) {
            let name = format!("{name}{suffix}");
            run(&mut connection, &format!("create database {name}")).await;
            let replica = Replica {
                options: server.clone().database(&name),
                socket: self.socket(),
                name,
            };
            migrate(program, &replica.url(None)).await;
            replicas.push(replica);
        }
        Database { replicas }
    }
}

async fn migrate(program: &Path, url: &str) {
    let output = tokio::process::Command::new(program)
        .arg("migrate")
        .env("DATABASE_URL", url)
        .output()
        .await
        .expect("the program");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", program.display());
}

/// Statement that inserts the pets from `first` to `last`. All have the tag `common`, one in 500 has `group-7`.
pub const PETS: &str = r#"
    insert into pets (id, status, details)
    select i, (array['available', 'pending', 'sold'])[1 + i % 3],
           concat('{"category":{"id":', i % 10, ',"name":"Category ', i % 10, '"},"name":"Pet ', i,
                  '","photoUrls":["https://example.com/photos/', i, '.jpg"],"tags":[{"id":1,"name":"common"},{"id":2,"name":"group-',
                  i % 500, '"}]}')::json
    from generate_series({first}, {last}) i"#;

/// Index that earlier schemas have. Building it afterwards is faster than maintaining it during the insert.
const SLOW_INDEX: &str = "select indexdef from pg_indexes where indexname = 'pets_by_tag_name'";

/// The database of the service and, with the same rows, that of an earlier build.
pub struct Database {
    replicas: Vec<Replica>,
}

struct Replica {
    name: String,
    socket: PathBuf,
    options: ConnectOptions,
}

impl Replica {
    fn url(&self, proxy: Option<u16>) -> String {
        let host = match proxy {
            Some(port) => format!("127.0.0.1:{port}/{}?", self.name),
            None => format!(
                "localhost:5432/{}?host={}&",
                self.name,
                self.socket.display()
            ),
        };
        format!("postgres://postgres@{host}sslmode=disable")
    }
}

impl Database {
    /// Returns the name of the service's database.
    pub fn name(&self) -> &str {
        &self.replicas[0].name
    }

    /// Returns the URL of the service's database, through a proxy on a TCP port if there is one.
    pub fn url(&self, proxy: Option<u16>) -> String {
        self.replicas[0].url(proxy)
    }

    /// Returns the same URL of the earlier build's database.
    pub fn url_before(&self, proxy: Option<u16>) -> Option<String> {
        Some(self.replicas.get(1)?.url(proxy))
    }

    /// Runs a statement on each database.
    pub async fn run(&self, statement: &str) {
        for replica in &self.replicas {
            run(&mut connect(&replica.options).await, statement).await;
        }
    }

    /// Inserts the pets from 1 to `pets` that are missing.
    pub async fn fill(&self, pets: u32) {
        for replica in &self.replicas {
            let mut connection = connect(&replica.options).await;
            let index: Option<String> = sqlx::query_scalar(SLOW_INDEX)
                .fetch_optional(&mut connection)
                .await
                .expect("the indexes");
            if index.is_some() {
                run(&mut connection, "drop index pets_by_tag_name").await;
            }
            let first: i64 = sqlx::query_scalar("select coalesce(max(id), 0) + 1 from pets")
                .fetch_one(&mut connection)
                .await
                .expect("a number");
            let insert = PETS.replace("{first}", &first.to_string());
            run(
                &mut connection,
                &insert.replace("{last}", &pets.to_string()),
            )
            .await;
            if let Some(index) = index {
                run(&mut connection, &index).await;
            }
        }
    }

    /// Deletes the pets after `pets`, vacuums, analyzes, resets the sequence and checkpoints, so that rows start from
    /// a steady state.
    pub async fn settle(&self, pets: u32) {
        for statement in [
            &format!("delete from orders where pet_id > {pets}"),
            &format!("delete from pets where id > {pets}"),
            "vacuum analyze",
            "select setval('pet_ids', max(id)) from pets",
            "checkpoint",
        ] {
            self.run(statement).await;
        }
    }

    /// Returns the newest image in each database: its pet, its identifier and the key of its bytes.
    pub async fn image_of_each(&self) -> Vec<(i64, String, String)> {
        let mut images = Vec::new();
        for replica in &self.replicas {
            let image = sqlx::query_as(
                "select pet_id, encode(id, 'hex'), key from images join image_contents using (sha256)
                 order by images.created_at desc limit 1",
            );
            let mut connection = connect(&replica.options).await;
            images.push(image.fetch_one(&mut connection).await.expect("an image"));
        }
        images
    }

    /// Creates callers on a plan, named `{prefix}-1` to `{prefix}-{count}`, with an API key each; returns the keys.
    pub async fn callers(&self, prefix: &str, plan: &str, count: usize) -> Vec<String> {
        let (keys, hashes) = secrets(CredentialKind::ApiKey, count);
        for replica in &self.replicas {
            sqlx::query(CALLERS)
                .bind(&hashes)
                .bind(prefix)
                .bind(plan)
                .execute(&mut connect(&replica.options).await)
                .await
                .expect("callers");
        }
        keys
    }

    /// Adds credentials of one kind to a caller and returns them. Access tokens are issued by its OAuth client, which
    /// has the identifier [`client_id`].
    pub async fn credentials(
        &self,
        caller: &str,
        kind: CredentialKind,
        count: usize,
    ) -> Vec<String> {
        let (texts, hashes) = secrets(kind, count);
        let name = match kind {
            CredentialKind::ApiKey => "api_key",
            CredentialKind::AccessToken => "access_token",
            CredentialKind::Session => "session",
            CredentialKind::ClientSecret => "client_secret",
        };
        for replica in &self.replicas {
            sqlx::query(CREDENTIALS)
                .bind(&hashes)
                .bind(caller)
                .bind(name)
                .bind(client_id(caller))
                .execute(&mut connect(&replica.options).await)
                .await
                .expect("credentials");
        }
        texts
    }
}

/// Returns the identifier of a caller's OAuth client: 20 characters after the prefix.
pub fn client_id(caller: &str) -> String {
    format!("pic_{:x<20}", caller.replace('-', ""))
}

fn secrets(kind: CredentialKind, count: usize) -> (Vec<String>, Vec<Vec<u8>>) {
    let secret = || Secret::generate(kind).expect("random numbers");
    let pair = |secret: Secret| (secret.expose().to_owned(), secret.hash().to_vec());
    (0..count).map(|_| pair(secret())).unzip()
}

const CALLERS: &str = "
    with given as (
        select hash, $2 || '-' || n as name from unnest($1::bytea[]) with ordinality as g (hash, n)
    ), made as (
        insert into callers (name, plan, scopes)
        select name, $3, array['read:pets', 'write:pets', 'read:orders', 'write:orders', 'admin'] from given
        returning id, name
    )
    insert into credentials (caller_id, kind, hash, hint)
    select made.id, 'api_key', given.hash, 'bench' from made join given using (name)";

const CREDENTIALS: &str = "
    insert into credentials (caller_id, kind, hash, hint, expires_at, client_id, issued_by)
    select callers.id, $3, hash, 'bench', now() + interval '1 day', case $3 when 'client_secret' then $4 end,
           case $3 when 'access_token' then (select id from credentials where client_id = $4) end
    from callers, unnest($1::bytea[]) hash
    where name = $2";

async fn connect(options: &ConnectOptions) -> PgConnection {
    PgConnection::connect_with(options)
        .await
        .expect("a connection")
}

async fn run(connection: &mut PgConnection, statement: &str) {
    connection
        .execute(AssertSqlSafe(statement.to_owned()))
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
}
