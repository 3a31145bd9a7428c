//! The house, checked: draws the import graph from the sources under `src/` and names each line
//! that breaks a rule. The tables below are the law and the map in `src/lib.rs` says it in words:
//! change both in one commit. `architecture/can_fail.rs` shows each rule failing.

mod can_fail;
mod imports;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use imports::Imports;

/// The floors, top to bottom. A room is a file `x.rs` or a folder `x/`; it imports from the floors
/// below its own.
const FLOORS: &[&[&str]] = &[
    &["main"],
    &["lib"],
    &["cli"],
    &["app"],
    &["server", "telemetry", "embedded_postgres", "maintenance"],
    &["api"],
    &["auth", "limits", "images"],
    &["db", "blob_store"],
    &["config", "http_client", "trace_context"],
    &["domain"],
];

/// Rooms divided by noun. A file in one uses itself and these shared files, never another noun;
/// only `mod.rs` uses all of them. (`mod` in a list: what `mod.rs` itself defines.)
const NOUNS: &[(&str, &[&str])] = &[("api", API_SHARED), ("db", DB_SHARED)];

#[rustfmt::skip]
const API_SHARED: &[&str] =
    &["state", "error", "extract", "openapi", "access", "answer", "conditional", "credentials", "fields", "idempotency",
      "operations", "paging", "problem", "rate_limits", "request_context", "request_id"];

#[rustfmt::skip]
const DB_SHARED: &[&str] =
    &["batch", "breaker", "codec", "connect", "database", "deadline", "error", "health", "pool", "pooler", "retry",
      "usage"];

/// A technology is a room: what is on the left appears only in the rooms on the right.
#[rustfmt::skip]
const TECHNOLOGIES: &[(&[&str], &[&str])] = &[
    (&["clap", "clap_complete", "csv", "indicatif"], &["cli"]),
    (&["axum", "tower_http", "utoipa", "utoipa_axum", "utoipa_swagger_ui"], &["api", "app"]),
    (&["hyper", "hyper_util", "socket2"], &["server"]),
    (&["jsonwebtoken", "argon2"], &["auth"]),
    (&["reqwest"], &["http_client", "auth", "blob_store", "telemetry"]),
    (&["opentelemetry", "opentelemetry_http", "tracing_opentelemetry"], &["trace_context", "telemetry"]),
    (&["opentelemetry_sdk", "opentelemetry_otlp"], &["telemetry"]),
    (&["rustls"], &["http_client"]),
    (&["governor"], &["limits"]),
    (&["sqlx"], &["db", "embedded_postgres"]),
    (&["object_store"], &["blob_store"]),
    (&["image"], &["images"]),
    (&["std::env"], &["config"]),
];

/// Names that do not say what is inside. A thing without a room has no owner.
#[rustfmt::skip]
const BANNED_NAMES: &[&str] =
    &["util", "utils", "common", "core", "helpers", "types", "prelude", "service", "manager"];

const MAX_LINES: usize = 400;

#[test]
fn the_sources_keep_the_house() -> io::Result<()> {
    let breaches = check(&sources()?);
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
    Ok(())
}

#[test]
fn the_map_in_lib_rs_names_every_module() -> io::Result<()> {
    let sources = sources()?;
    let unnamed = modules_missing_from_map(&sources["src/lib.rs"]);
    assert!(
        unnamed.is_empty(),
        "src/lib.rs: say in its //! map what these hold: {unnamed:?}"
    );
    Ok(())
}

// ---- The laws: each says what is wrong and what to do ----

/// Path from the crate's folder, as in `src/api/pets.rs`, to text.
type Sources = BTreeMap<String, String>;

/// Every breach as `file:line: what is wrong. What to do`; one of a kind a file, at its first line.
fn check(sources: &Sources) -> Vec<String> {
    let mut report = Vec::new();
    for (file, text) in sources {
        let mut breaches = breaches_of_file(file, text);
        match Imports::read(module(file), text) {
            Err(error) => breaches.push((error.span().start().line, format!("not Rust: {error}"))),
            Ok(imports) => {
                let modules = imports.modules.iter();
                breaches
                    .extend(modules.filter_map(|(at, name)| Some((*at, breach_of_name(name)?))));
                for (line, path) in &imports.paths {
                    let breaches_of_path = [
                        breach_of_floors(file, path),
                        breach_of_nouns(file, path, sources),
                        breach_of_technologies(file, path),
                    ];
                    breaches.extend(breaches_of_path.into_iter().flatten().map(|it| (*line, it)));
                }
            }
        }
        breaches.sort();
        let mut said = BTreeSet::new();
        breaches.retain(|(_, breach)| said.insert(breach.clone()));
        report.extend(
            breaches
                .iter()
                .map(|(line, breach)| format!("{file}:{line}: {breach}")),
        );
    }
    report
}

fn breaches_of_file(file: &str, text: &str) -> Vec<(usize, String)> {
    let mut breaches: Vec<_> = names(file).filter_map(breach_of_name).collect();
    let (room, lines) = (room_of_file(file), text.lines().count());
    if floor(room).is_none() {
        breaches.push(format!(
            "`{room}` is on no floor. Move it to the room that owns it, or give it a place in \
             FLOORS and in the map"
        ));
    }
    if !text.starts_with("//! ") {
        breaches.push("no header. Begin with `//! `: what this file holds and keeps true".into());
    }
    if lines > MAX_LINES {
        breaches.push(format!(
            "{lines} lines, {MAX_LINES} at most. Make it a folder and split it by subject"
        ));
    }
    breaches.into_iter().map(|breach| (1, breach)).collect()
}

fn breach_of_name(name: &str) -> Option<String> {
    BANNED_NAMES.contains(&name).then(|| {
        format!("`{name}` names nothing. Call it what it holds, or move its parts to their owners")
    })
}

fn breach_of_floors(file: &str, path: &[String]) -> Option<String> {
    let (from, to) = (room_of_file(file), room_of_path(path)?);
    let (here, there) = (floor(from)?, floor(to)?);
    if from == to || here < there {
        return None;
    }
    let way = if here == there { "sideways" } else { "up" };
    Some(format!(
        "`{from}` imports {way}: `{}`. Move what both need to a floor below, or let the caller \
         pass it in",
        shown(path)
    ))
}

fn breach_of_nouns(file: &str, path: &[String], sources: &Sources) -> Option<String> {
    let room = room_of_file(file);
    let (_, shared) = NOUNS
        .iter()
        .find(|(it, _)| *it == room && room_of_path(path) == Some(it))?;
    let from = names(file).nth(1).filter(|name| *name != "mod")?;
    let to = match path.get(2)?.as_str() {
        name if name == "*" || has_module(sources, room, name) => name,
        _ => "mod",
    };
    if from == to || shared.contains(&to) {
        return None;
    }
    Some(format!(
        "`{room}/{from}` imports from `{room}/{to}`: `{}`. What both need belongs into one of \
         {shared:?}, or to a floor below",
        shown(path)
    ))
}

fn breach_of_technologies(file: &str, path: &[String]) -> Option<String> {
    let (room, path) = (room_of_file(file), path.join("::") + "::");
    let is_used = |technology: &&&str| path.starts_with(&format!("{technology}::"));
    TECHNOLOGIES
        .iter()
        .filter(|(_, rooms)| !rooms.contains(&room))
        .find_map(|(them, rooms)| {
            let technology = them.iter().find(is_used)?;
            Some(format!(
                "`{technology}` in `{room}`, its place is {rooms:?}. Put the code there, behind a \
             function that hides it"
            ))
        })
}

fn modules_missing_from_map(lib: &str) -> Vec<&str> {
    let map = lib.lines().filter(|line| line.starts_with("//!"));
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<_> = map.flat_map(|line| line.split(|c| !is_word(c))).collect();
    let items = lib.lines().map(|line| line.trim_start_matches("pub "));
    let modules = items.filter_map(|item| item.strip_prefix("mod ")?.strip_suffix(';'));
    modules.filter(|module| !words.contains(module)).collect()
}

// ---- Where things are ----

/// `src/api/pets.rs` → `api`, `pets`.
fn names(file: &str) -> impl Iterator<Item = &str> {
    file.trim_start_matches("src/")
        .trim_end_matches(".rs")
        .split('/')
}

/// `src/api/pets.rs` → `crate`, `api`, `pets`; `src/api/mod.rs` → `crate`, `api`.
fn module(file: &str) -> Vec<String> {
    let below = names(file).filter(|name| !["lib", "main", "mod"].contains(name));
    ["crate"]
        .into_iter()
        .chain(below)
        .map(str::to_owned)
        .collect()
}

fn has_module(sources: &Sources, room: &str, name: &str) -> bool {
    let (file, folder) = (
        format!("src/{room}/{name}.rs"),
        format!("src/{room}/{name}/"),
    );
    sources
        .keys()
        .any(|it| *it == file || it.starts_with(&folder))
}

fn room_of_file(file: &str) -> &str {
    names(file).next().unwrap_or_default()
}

/// As much of a path as says where it leads.
fn shown(path: &[String]) -> String {
    path[..path.len().min(3)].join("::")
}

/// The room of `crate::room::…`; what stands at the crate's root itself belongs to `lib`.
fn room_of_path(path: &[String]) -> Option<&str> {
    let name = path.get(1).filter(|_| path[0] == "crate")?;
    Some(if floor(name).is_some() { name } else { "lib" })
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn sources() -> io::Result<Sources> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut folders) = (Sources::new(), vec![root.join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = path
                    .strip_prefix(root)
                    .map_err(io::Error::other)?
                    .display()
                    .to_string();
                found.insert(file, fs::read_to_string(path)?);
            }
        }
    }
    Ok(found)
}
