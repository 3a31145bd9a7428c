//! PostgreSQL with pets, callers and their keys.

use std::path::{Path, PathBuf};

use pet_inventory::{
    auth::secret::{Kind, Secret},
    config::Pooler,
    db::{self, ConnectOptions},
    embedded_postgres::{Durability, EmbeddedPostgres, SearchPath},
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

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

    /// Creates a database with `pets` pets.
    pub async fn database(&self, name: &str, pets: u32) -> Database {
        let options = self.server.connect_options();
        let mut connection = connect(&options).await;
        run(&mut connection, &format!("create database {name}")).await;
        let options = options.database(name);
        db::migrations::apply(&options, Pooler::None)
            .await
            .expect("a schema");
        let url = format!(
            "postgres://postgres@localhost:5432/{name}?host={}&sslmode=disable",
            self.socket().display()
        );
        let database = Database { url, options, pets };
        let mut connection = connect(&database.options).await;
        // Building the index afterwards is faster than maintaining it during the insert.
        run(&mut connection, "drop index pets_by_tag_name").await;
        run(
            &mut connection,
            &format!(
                "insert into pets (id, status, name, category, photo_urls, tags)
                 select i, (array['available', 'pending', 'sold'])[1 + i % 3], 'Pet ' || i,
                        jsonb_build_object('id', i % 10, 'name', 'Category ' || i % 10),
                        array['https://example.com/photos/' || i || '.jpg'],
                        jsonb_build_array(jsonb_build_object('id', 1, 'name', 'friendly-' || i % 50),
                                          jsonb_build_object('id', 2, 'name', 'litter-' || i / 20))
                 from generate_series(1, {pets}) i"
            ),
        )
        .await;
        run(
            &mut connection,
            "create index pets_by_tag_name on pets using gin (tag_names) with (fastupdate = off)",
        )
        .await;
        database.settle().await;
        database
    }
}

pub struct Database {
    pub url: String,
    pub options: ConnectOptions,
    pub pets: u32,
}

impl Database {
    /// Vacuums, analyzes, resets the id sequence and checkpoints, so that runs start from a steady state.
    pub async fn settle(&self) {
        let mut connection = connect(&self.options).await;
        run(&mut connection, "vacuum analyze").await;
        run(
            &mut connection,
            "select setval('pet_ids', (select max(id) from pets))",
        )
        .await;
        run(&mut connection, "checkpoint").await;
    }

    /// Deletes the pets that a row added.
    pub async fn clean(&self) {
        let mut connection = connect(&self.options).await;
        run(
            &mut connection,
            &format!("delete from pets where id > {}", self.pets),
        )
        .await;
        self.settle().await;
    }

    /// Returns one image: its pet, its identifier and the key of its bytes.
    pub async fn an_image(&self) -> (i64, String, String) {
        let mut connection = connect(&self.options).await;
        sqlx::query_as(
            "select pet_id, encode(id, 'hex'), key from images join image_contents using (sha256) limit 1",
        )
        .fetch_one(&mut connection)
        .await
        .expect("an image")
    }

    /// Creates `count` callers on a plan; returns a key of each.
    pub async fn callers(&self, prefix: &str, plan: &str, count: usize) -> Vec<String> {
        let keys: Vec<Secret> = (0..count)
            .map(|_| Secret::generate(Kind::ApiKey).expect("random numbers"))
            .collect();
        let hashes: Vec<Vec<u8>> = keys.iter().map(|key| key.hash().to_vec()).collect();
        let mut connection = connect(&self.options).await;
        sqlx::query(
            "with given as (
                 select hash, $2 || '-' || n as name from unnest($1::bytea[]) with ordinality as g (hash, n)
             ), made as (
                 insert into callers (name, plan, scopes)
                 select name, $3, array['read:pets', 'write:pets'] from given
                 returning id, name
             )
             insert into credentials (caller_id, kind, hash, hint)
             select made.id, 'api_key', given.hash, 'bench' from made join given using (name)",
        )
        .bind(hashes)
        .bind(prefix)
        .bind(plan)
        .execute(&mut connection)
        .await
        .expect("callers");
        keys.iter().map(|key| key.expose().to_owned()).collect()
    }
}

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
