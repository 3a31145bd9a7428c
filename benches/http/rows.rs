//! Measures the table of operations.

use std::{path::Path, process::Command};

use pet_inventory::db::credentials::CredentialKind;
use serde_json::Value;

use crate::{
    accounts, admin,
    data::client_id,
    load::{Load, Numbers, Template},
    operations::{self, Against, Keys, Operation},
    servers::Kind,
    stage::{Opponent, Row, Stage, Work},
};

/// Operations that another module measures, and one that a store takes once.
const ELSEWHERE: [&str; 8] = [
    "uploadFile",
    "getImage",
    "addSampleStore",
    // Rare.
    "createWebhook",
    "patchWebhook",
    "deleteWebhook",
    "testWebhook",
    "retryDelivery",
];
/// Name of the caller with sessions, an OAuth client and access tokens.
const CLIENT: &str = "client-1";

/// Returns the whole table.
fn table() -> impl Iterator<Item = &'static Operation> {
    let tables = [
        operations::OPERATIONS,
        accounts::OPERATIONS,
        admin::OPERATIONS,
    ];
    tables.into_iter().flatten()
}

/// Statements that insert what the operations read. The orders are delivered, so that they hold no pet.
const DATA: [&str; 4] = [
    "insert into orders (id, owner, pet_id, quantity, status, complete)
     select i, 0, i, 1, 'delivered', true from generate_series(1, 1000) i",
    "select setval('order_ids', 1000000000)",
    "with content as (
         insert into image_contents (sha256, key, media_type, size, width, height)
         values (sha256('bench'), 'bench', 'image/png', 1, 1, 1) returning sha256
     )
     insert into images (id, pet_id, sha256, created_at)
     select decode(repeat('f', 32), 'hex'), 1, sha256, '2000-01-01' from content",
    "with made as (
         insert into callers (name, plan, scopes)
         select 'user:' || 2000000000 + i, 'free', array['read:pets'] from generate_series(0, 999) i
         returning id, name
     )
     insert into users (id, caller_id, username, folded)
     select number, id, 'bench' || number - 2000000000, 'bench' || number - 2000000000
     from (select id, substr(name, 6)::bigint as number from made) numbered",
];

/// Panics if an operation of the OpenAPI document has no row.
pub fn require_all(program: &Path) {
    let output = Command::new(program).arg("openapi").output();
    let output = output.expect("the program");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let items = document["paths"].as_object().expect("paths").values();
    let ids = items.flat_map(|item| item.as_object().into_iter().flatten());
    for id in ids.filter_map(|(_, operation)| operation["operationId"].as_str()) {
        let mut rows = table().map(|row| row.name);
        let is_measured = rows.any(|row| row.split('/').next() == Some(id));
        assert!(
            is_measured || ELSEWHERE.contains(&id),
            "operation {id} has no row in benches/http/operations.rs"
        );
    }
}

/// Credentials of the rows.
struct Credentials {
    many_callers: Vec<String>,
    sessions: Vec<String>,
    tokens: Vec<String>,
    client_id: String,
    client_secret: String,
}

impl Credentials {
    async fn create(stage: &Stage<'_>) -> Self {
        let database = stage.database;
        let many_callers = database.callers("many", "enterprise", 4_000).await;
        database.callers("client", "enterprise", 1).await;
        let secrets = database.credentials(CLIENT, CredentialKind::ClientSecret, 1);
        let client_secret = secrets.await.remove(0);
        // More than one connection uses.
        let count = 6_000 * stage.options.seconds() as usize;
        // The scripts of pgbench find them by these identifiers.
        let restart = "alter table credentials alter column id restart with";
        database.run(&format!("{restart} 1000000000")).await;
        let sessions = database.credentials(CLIENT, CredentialKind::Session, count);
        let sessions = sessions.await;
        database.run(&format!("{restart} 2000000000")).await;
        let tokens = database.credentials(CLIENT, CredentialKind::AccessToken, count);
        Self {
            many_callers,
            sessions,
            tokens: tokens.await,
            client_id: client_id(CLIENT),
            client_secret,
        }
    }

    fn fill_in(&self, text: &str) -> String {
        let text = text.replace("{client}", &self.client_id);
        text.replace("{secret}", &self.client_secret)
    }
}

/// Measures the selected operations.
pub async fn operations(stage: &Stage<'_>) {
    let wanted = |row: &&'static Operation| stage.options.wants(row.name);
    let rows: Vec<_> = table().filter(wanted).collect();
    if rows.is_empty() {
        return;
    }
    for statement in DATA {
        stage.database.run(statement).await;
    }
    let credentials = Credentials::create(stage).await;
    create_user(stage).await;
    let get = stage.get("get", "/api/v3/pet/<n>", &stage.keys);
    warm_up(stage, &get).await;
    for row in rows {
        measure(stage, row, &credentials, &get).await;
    }
}

/// Creates the user that logs in.
async fn create_user(stage: &Stage<'_>) {
    for address in stage.addresses() {
        let response = crate::callers::client()
            .post(format!("http://{address}/api/v3/user"))
            .header("content-type", "application/json")
            .body(r#"{"username":"benchuser","password":"correct horse"}"#)
            .send()
            .await
            .expect("a response");
        assert_eq!(response.status(), 201, "the user is not created");
    }
}

async fn warm_up(stage: &Stage<'_>, get: &Load) {
    for address in stage.addresses() {
        get.run(address, 64, 1, 1).await;
    }
}

async fn measure(stage: &Stage<'_>, row: &Operation, credentials: &Credentials, get: &Load) {
    let numbers = match row.prepare {
        [] => Numbers::Random(stage.pets),
        _ => Numbers::Consecutive,
    };
    let content_type = match row.content_type {
        "" => String::new(),
        value => format!("[\"content-type\"] = \"{value}\""),
    };
    let template = Template {
        method: row.request.0,
        path: row.request.1,
        credential: row.credential,
        keys: match row.keys {
            Keys::Callers => &stage.keys,
            Keys::ManyCallers => &credentials.many_callers,
            Keys::Sessions => &credentials.sessions,
            Keys::Tokens => &credentials.tokens,
        },
        headers: &content_type,
        body: &credentials.fill_in(row.body),
        numbers,
    };
    let load = Load::new(stage.folder(), row.name, &template);
    let scripts = row.against.iter().map(|against| match against {
        Against::Pgbench(text) => Some(stage.script(row.name, numbers, &credentials.fill_in(text))),
        _ => None,
    });
    let scripts: Vec<_> = scripts.collect();
    let opponents = row.against.iter().zip(&scripts);
    let opponents = opponents.map(|(against, script)| match (against, script) {
        (_, Some(script)) => ("pgbench", Work::Pgbench(script)),
        (Against::Naive, _) => ("naive", Work::Http(stage.other(Kind::Naive), &load)),
        (Against::Static, _) => ("static", Work::Http(stage.other(Kind::Static), get)),
        _ => ("get", Work::Http(&stage.service, get)),
    });
    let opponents = opponents.map(|(name, work)| Opponent { name, work });
    let mut opponents: Vec<_> = opponents.collect();
    let wanted = |connections: &&u32| stage.options.wants_connections(**connections);
    for &connections in row.connections.iter().filter(wanted) {
        // An embedded PostgreSQL accepts 500 connections.
        if connections > 200 && stage.before.is_some() {
            opponents.retain(|opponent| !matches!(opponent.work, Work::Pgbench(_)));
        }
        let cell = Row {
            prepare: row.prepare,
            ..Row::new(&load, connections)
        };
        stage.compare(row.name, &cell, &opponents).await;
    }
    if row.request.0 != "GET" {
        stage.database.settle(stage.pets).await;
    }
}
