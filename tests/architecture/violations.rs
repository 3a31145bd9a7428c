//! Shows that each rule can fail: a small valid crate, and one violation at a time.

use super::{Sources, check, modules_missing_from_map};

/// Valid sources: one file of each kind, with allowed imports only. The header of each is its line 1.
#[rustfmt::skip]
const VALID: &[(&str, &str)] = &[
    ("src/main.rs", "use pet_inventory::cli;"),
    ("src/lib.rs", "pub mod api; pub mod app;"),
    ("src/cli/mod.rs", "use clap::Parser; use crate::{app::App, config};"),
    ("src/app.rs", "use crate::{api, server, telemetry}; fn f(_: axum::Router) {}"),
    ("src/server.rs", "use crate::domain;"),
    ("src/telemetry.rs", "fn f() { info!(target: \"pet_inventory::access\", \"std::env\") }"),
    ("src/api/mod.rs", "mod pets; mod orders; mod error; fn f() { pets::router(); }"),
    ("src/api/error.rs", "use crate::{auth, db::Error as Db};"),
    ("src/api/pets.rs", "use crate::{api, db}; fn f() -> api::error::Error { db::pets::get() }"),
    ("src/api/orders.rs", "use super::error::Error; mod tests { use super::*; }"),
    ("src/auth/mod.rs", "use crate::db;"),
    ("src/limits/mod.rs", "mod minute; use minute::Minute;"),
    ("src/limits/minute.rs", "use governor::Quota;"),
    ("src/db/mod.rs", "mod error; pub use error::Error; mod pets; mod orders;"),
    ("src/db/error.rs", "use sqlx::Error;"),
    ("src/db/pets.rs", "use super::error::{self, Error}; use crate::domain::Pet;"),
    ("src/db/orders.rs", "use crate::db::error;"),
    ("src/blob_store.rs", "use object_store::ObjectStore;"),
    ("src/config.rs", "use std::env;"),
    ("src/domain/mod.rs", "pub mod pet;"),
    ("src/domain/pet.rs", "use std::{fmt, time};"),
];

/// File, its code from line 2 on, and the beginning of its one violation: line and problem.
#[rustfmt::skip]
const VIOLATIONS: &[(&str, &str, &str)] = &[
    // Up, in every notation.
    ("src/domain/pet.rs", "use crate::db::pets;", "2: `domain` imports up: `crate::db::pets`"),
    ("src/domain/pet.rs", "use crate::{\n domain,\n db::{pets},\n};", "4: `domain` imports up: `crate::db::pets`"),
    ("src/domain/pet.rs", "use super::super::app as x;", "2: `domain` imports up: `crate::app`"),
    ("src/domain/pet.rs", "mod a { use super::super::super::cli; }", "2: `domain` imports up: `crate::cli`"),
    ("src/domain/pet.rs", "fn f() -> Vec<crate::auth::Caller> {}", "2: `domain` imports up: `crate::auth::Caller`"),
    ("src/domain/pet.rs", "fn f() { if x < crate::db::MAX {} }", "2: `domain` imports up: `crate::db::MAX`"),
    ("src/domain/pet.rs", "fn f() { vec![1, crate::db::f::<u8>(1)] }", "2: `domain` imports up: `crate::db::f`"),
    ("src/domain/pet.rs", "fn f() { select! { _ => { use crate::{api}; } } }", "2: `domain` imports up: `crate::api`"),
    ("src/domain/pet.rs", "#[serde(with = \"crate::api::dates\")] struct X;", "2: `domain` imports up: `crate::api::dates`"),
    ("src/domain/pet.rs", "use crate::Thing;", "2: `domain` imports up: `crate::Thing`"),
    ("src/domain/pet.rs", "use crate::*;", "2: `domain` imports up: `crate::*`"),
    // Sideways.
    ("src/auth/mod.rs", "use crate::limits;", "2: `auth` imports sideways: `crate::limits`"),
    ("src/blob_store.rs", "use crate::db;", "2: `blob_store` imports sideways: `crate::db`"),
    ("src/telemetry.rs", "use crate::app;", "2: `telemetry` imports up: `crate::app`"),
    ("src/server.rs", "use crate::telemetry;", "2: `server` imports sideways: `crate::telemetry`"),
    // From resource to resource.
    ("src/api/pets.rs", "use super::orders::Body;", "2: `api/pets` imports from `api/orders`"),
    ("src/api/pets.rs", "use crate::api; type X = api::orders::Body;", "2: `api/pets` imports from `api/orders`"),
    ("src/api/pets.rs", "use super::router;", "2: `api/pets` imports from `api/mod`"),
    ("src/api/pets.rs", "use super::*;", "2: `api/pets` imports from `api/*`"),
    ("src/api/error.rs", "use super::pets;", "2: `api/error` imports from `api/pets`"),
    ("src/api/layers/access_log.rs", "use crate::api::pets;", "2: `api/layers` imports from `api/pets`"),
    ("src/db/pets.rs", "use crate::db::{orders};", "2: `db/pets` imports from `db/orders`"),
    ("src/db/pets.rs", "use super::Error;", "2: `db/pets` imports from `db/mod`"),
    ("src/db/error.rs", "use super::pets;", "2: `db/error` imports from `db/pets`"),
    ("src/db/pets.rs", "use crate::db; use db::orders;", "2: `db/pets` imports from `db/orders`"),
    // A technology outside its module.
    ("src/auth/mod.rs", "#[derive(utoipa::ToSchema)] struct X;", "2: `utoipa` in `auth`, but [\"api\", \"app\", \"db\", \"domain\"] owns it"),
    ("src/domain/pet.rs", "use axum::{Json, Router};", "2: `axum` in `domain`"),
    ("src/domain/pet.rs", "fn f() { sqlx::query!(\"select 1\") }", "2: `sqlx` in `domain`"),
    ("src/domain/pet.rs", "use std::{env as e};", "2: `std::env` in `domain`"),
    ("src/auth/mod.rs", "use std as s; fn f() { s::env::var(\"X\") }", "2: `std::env` in `auth`"),
    ("src/auth/mod.rs", "use governor as g;", "2: `governor` in `auth`"),
    // Names and form.
    ("src/db/util.rs", "", "1: the module name `util`"),
    ("src/domain/pet.rs", "mod helpers {}", "2: the module name `helpers`"),
    ("src/mailer/smtp.rs", "", "1: `mailer` is in no layer"),
    ("src/domain/pet.rs", "fn {", "2: not Rust"),
];

fn valid_sources_with(file: &str, text: &str) -> Sources {
    let with_header =
        |&(file, code): &(&str, &str)| (file.to_owned(), format!("//! Header.\n{code}"));
    let mut sources: Sources = VALID.iter().map(with_header).collect();
    sources.insert(file.to_owned(), text.to_owned());
    sources
}

#[test]
fn valid_sources_have_no_violation() {
    assert_eq!(
        check(&valid_sources_with("src/lib.rs", "//! Header.\n")),
        Vec::<String>::new()
    );
}

#[test]
fn each_violation_is_reported_once_with_its_line() {
    for (file, code, expected) in VIOLATIONS {
        let mut violations = check(&valid_sources_with(file, &format!("//! Header.\n{code}")));
        // An import against another rule may also close a cycle.
        violations.retain(|violation| !violation.contains("import cycle"));
        let expected = format!("{file}:{expected}");
        assert!(
            matches!(&violations[..], [violation] if violation.starts_with(&expected)),
            "{file} with {code}\nexpected: {expected}\nreported: {violations:#?}"
        );
    }
}

#[test]
fn file_without_header_is_reported() {
    let violations = check(&valid_sources_with("src/domain/pet.rs", "struct Pet;"));
    assert!(
        violations[0].starts_with("src/domain/pet.rs:1: no header"),
        "{violations:?}"
    );
}

#[test]
fn import_cycle_is_reported() {
    let report = |files: &[(&str, &str)]| {
        let mut sources = valid_sources_with("src/lib.rs", "//! Header.\n");
        for (file, code) in files {
            sources.insert((*file).to_owned(), format!("//! Header.\n{code}"));
        }
        check(&sources)
    };
    let cycles: &[&[(&str, &str)]] = &[
        // Between two files.
        &[
            ("src/domain/pet.rs", "use super::tag::Tag;"),
            ("src/domain/tag.rs", "use super::pet::Pet;"),
        ],
        // Between a file and the `mod.rs` of its folder, also by a re-export.
        &[
            (
                "src/domain/mod.rs",
                "mod pet; pub use pet::Error; pub struct Id;",
            ),
            ("src/domain/pet.rs", "use super::Id;"),
        ],
        // Between three files.
        &[
            ("src/domain/pet.rs", "fn f() { super::tag::f() }"),
            ("src/domain/tag.rs", "use crate::domain::user::User;"),
            (
                "src/domain/user.rs",
                "use crate::domain; type Pet = domain::pet::Pet;",
            ),
        ],
        // Between two folders, although no two files form a cycle.
        &[
            ("src/domain/pet/a.rs", "use crate::domain::tag::b::B;"),
            ("src/domain/pet/b.rs", ""),
            ("src/domain/tag/a.rs", "use crate::domain::pet::b::B;"),
            ("src/domain/tag/b.rs", ""),
        ],
    ];
    for cycle in cycles {
        let violations = report(cycle);
        assert!(
            matches!(&violations[..], [violation] if violation.contains("import cycle")),
            "{cycle:?}\nreported: {violations:#?}"
        );
    }
    let tests = [
        ("src/domain/pet.rs", "use super::tag::Tag;"),
        (
            "src/domain/tag.rs",
            "#[cfg(test)] mod tests { use crate::domain::pet::Pet; }",
        ),
    ];
    assert_eq!(report(&tests), Vec::<String>::new());
}

#[test]
fn module_missing_from_the_map_is_reported() {
    let lib = "//! The `domain`.\npub mod domain;\npub mod db;\nmod cli;";
    assert_eq!(modules_missing_from_map(lib), ["db", "cli"]);
}
