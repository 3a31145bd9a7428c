//! Checks that the sources follow the architecture: layers, modules, technologies, names and headers.
//!
//! The tables below are the rules; `src/lib.rs` and `.github/ARCHITECTURE.md` explain them. `violations.rs` shows that
//! each rule can fail.

mod cycles;
mod imports;
mod violations;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use imports::Imports;

/// Layers, from top to bottom. A module is a file `src/x.rs` or a folder `src/x/`; it imports only from lower layers.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["lib"],
    &["cli"],
    &["app"],
    &["server", "telemetry", "embedded_postgres", "maintenance"],
    &["api"],
    &["webhooks"],
    &["auth", "limits", "images", "feed", "sample_store"],
    &["db", "blob_store"],
    &["config", "http_client", "trace_context", "turns"],
    &["domain"],
];

/// Modules divided by resource, with their shared files. A file imports from its own resource and from shared files;
/// only `mod.rs` imports from every resource. `mod` in a list stands for the items of `mod.rs` itself.
const RESOURCES: &[(&str, &[&str])] = &[("api", API_SHARED), ("db", DB_SHARED)];

#[rustfmt::skip]
const API_SHARED: &[&str] =
    &["state", "error", "body", "extract", "openapi", "compression", "conditional", "credentials", "fields", "idempotency",
      "kinds", "list_body", "list_parameters", "operations", "paging", "problem", "request_context", "response", "scopes"];

#[rustfmt::skip]
const DB_SHARED: &[&str] =
    &["administration", "batch", "breaker", "codec", "conditions", "connect", "database", "database_url", "deadline", "error",
      "large_reads", "options", "parts", "pool", "pooler", "record", "schema", "scope", "sequences", "server"];

/// Technologies, and the modules that own them: no other module imports these crates.
#[rustfmt::skip]
const TECHNOLOGIES: &[(&[&str], &[&str])] = &[
    (&["clap", "clap_complete", "comfy_table", "csv_core", "indicatif", "sd_notify", "tar"], &["cli"]),
    (&["axum", "tower_http", "utoipa_axum", "utoipa_swagger_ui"], &["api", "app"]),
    (&["utoipa"], &["api", "app", "db", "domain"]),
    (&["hyper", "hyper_util", "listenfd", "socket2"], &["server"]),
    (&["jsonwebtoken", "argon2"], &["auth"]),
    (&["reqwest"], &["http_client", "auth", "blob_store", "telemetry", "webhooks"]),
    (&["opentelemetry", "opentelemetry_http", "tracing_opentelemetry"], &["trace_context", "telemetry"]),
    (&["opentelemetry_sdk", "opentelemetry_otlp"], &["telemetry"]),
    (&["rustls"], &["http_client"]),
    (&["governor"], &["limits"]),
    (&["sqlx"], &["db", "embedded_postgres"]),
    (&["object_store"], &["blob_store"]),
    (&["fast_image_resize", "image", "moxcms"], &["images"]),
    (&["std::env"], &["config"]),
];

/// Module names that do not tell the content.
#[rustfmt::skip]
const BANNED_NAMES: &[&str] =
    &["util", "utils", "common", "core", "helpers", "types", "prelude", "service", "manager"];

#[test]
fn sources_follow_the_architecture() -> io::Result<()> {
    let violations = check(&files_in("src")?);
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
    Ok(())
}

#[test]
fn map_in_lib_rs_names_every_module() -> io::Result<()> {
    let sources = files_in("src")?;
    let missing = modules_missing_from_map(&sources["src/lib.rs"]);
    assert!(
        missing.is_empty(),
        "src/lib.rs: add these modules to the map in its header: {missing:?}"
    );
    Ok(())
}

/// `pet-inventory check --replicas` adds up connections by this number, and the guides have it.
#[test]
fn kinds_of_batched_statements_are_counted() -> io::Result<()> {
    let sources = files_in("src")?;
    let kinds = sources
        .values()
        .map(|text| text.matches("impl BatchedStatement for ").count());
    let kinds = kinds.sum::<usize>();
    let constant = format!("const KINDS: u32 = {kinds};");
    assert!(
        sources["src/db/batch/mod.rs"].contains(&constant),
        "{constant}"
    );
    for guide in [
        "config/default.toml",
        "config/README.md",
        "config/kubernetes.yaml",
    ] {
        let text = fs::read_to_string(guide)?;
        assert!(
            text.contains(&format!("{kinds} per worker")),
            "{guide}: {kinds} per worker"
        );
    }
    Ok(())
}

/// Files by path, as in `src/api/pets.rs`, with their text.
type Sources = BTreeMap<String, String>;

/// Returns every violation as `file:line: problem. Remedy`, each once per file, at its first line.
fn check(sources: &Sources) -> Vec<String> {
    let mut report = Vec::new();
    let mut imports_by_file = BTreeMap::new();
    for (file, text) in sources {
        let mut violations = file_violations(file, text);
        match Imports::read(module_path(file), text) {
            Err(error) => {
                violations.push((error.span().start().line, format!("not Rust: {error}")));
            }
            Ok(imports) => {
                violations.extend(import_violations(file, &imports, sources));
                imports_by_file.insert(file.as_str(), imports);
            }
        }
        violations.sort();
        let mut reported = BTreeSet::new();
        violations.retain(|(_, violation)| reported.insert(violation.clone()));
        report.extend(
            violations
                .iter()
                .map(|(line, violation)| format!("{file}:{line}: {violation}")),
        );
    }
    report.extend(cycles::violations(&imports_by_file));
    report
}

/// Checks the module, header and length of a file.
fn file_violations(file: &str, text: &str) -> Vec<(usize, String)> {
    let mut violations: Vec<_> = names(file).filter_map(name_violation).collect();
    let module = module_of_file(file);
    if layer(module).is_none() {
        violations.push(format!(
            "`{module}` is in no layer. Move the file to the module that owns its content, or add \
             the module to LAYERS and to the map"
        ));
    }
    if !text.starts_with("//! ") {
        violations.push("no header. Begin with `//! ` and what the module does".into());
    }
    let at_top = violations.into_iter().map(|violation| (1, violation));
    at_top.collect()
}

fn import_violations(file: &str, imports: &Imports, sources: &Sources) -> Vec<(usize, String)> {
    let declared = imports.modules.iter();
    let mut violations: Vec<_> = declared
        .filter_map(|(line, name)| Some((*line, name_violation(name)?)))
        .collect();
    for import in &imports.paths {
        let found = [
            layer_violation(file, &import.path),
            resource_violation(file, &import.path, sources),
            technology_violation(file, &import.path),
        ];
        violations.extend(found.into_iter().flatten().map(|it| (import.line, it)));
    }
    violations
}

fn name_violation(name: &str) -> Option<String> {
    BANNED_NAMES.contains(&name).then(|| {
        format!("the module name `{name}` does not tell its content. Rename it, or move its items to the modules that own them")
    })
}

fn layer_violation(file: &str, path: &[String]) -> Option<String> {
    let (from, to) = (module_of_file(file), module_of_path(path)?);
    let (from_layer, to_layer) = (layer(from)?, layer(to)?);
    if from == to || from_layer < to_layer {
        return None;
    }
    let direction = if from_layer == to_layer {
        "sideways"
    } else {
        "up"
    };
    Some(format!(
        "`{from}` imports {direction}: `{}`. Move what both need to a lower layer, or take it as \
         a parameter",
        shortened(path)
    ))
}

fn resource_violation(file: &str, path: &[String], sources: &Sources) -> Option<String> {
    let module = module_of_file(file);
    let (_, shared) = RESOURCES
        .iter()
        .find(|(name, _)| *name == module && module_of_path(path) == Some(name))?;
    let from = names(file).nth(1).filter(|name| *name != "mod")?;
    let to = match path.get(2)?.as_str() {
        name if name == "*" || has_submodule(sources, module, name) => name,
        _ => "mod",
    };
    if from == to || shared.contains(&to) {
        return None;
    }
    Some(format!(
        "`{module}/{from}` imports from `{module}/{to}`: `{}`. Move what both need to one of \
         {shared:?}, or to a lower layer",
        shortened(path)
    ))
}

fn technology_violation(file: &str, path: &[String]) -> Option<String> {
    let (module, path) = (module_of_file(file), path.join("::") + "::");
    let is_used = |technology: &&&str| path.starts_with(&format!("{technology}::"));
    TECHNOLOGIES
        .iter()
        .filter(|(_, owners)| !owners.contains(&module))
        .find_map(|(technologies, owners)| {
            let technology = technologies.iter().find(is_used)?;
            Some(format!(
                "`{technology}` in `{module}`, but {owners:?} owns it. Move the code there, behind \
                 a function that hides the technology"
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

/// Returns the names in a path: `api`, `pets` for `src/api/pets.rs`.
fn names(file: &str) -> impl Iterator<Item = &str> {
    file.trim_start_matches("src/")
        .trim_end_matches(".rs")
        .split('/')
}

/// Returns the path of a file's module: `crate`, `api` for `src/api/mod.rs`.
fn module_path(file: &str) -> Vec<String> {
    let below = names(file).filter(|name| !["lib", "main", "mod"].contains(name));
    ["crate"]
        .into_iter()
        .chain(below)
        .map(str::to_owned)
        .collect()
}

fn has_submodule(sources: &Sources, module: &str, name: &str) -> bool {
    let file = format!("src/{module}/{name}.rs");
    let folder = format!("src/{module}/{name}/");
    sources
        .keys()
        .any(|source| *source == file || source.starts_with(&folder))
}

fn module_of_file(file: &str) -> &str {
    names(file).next().unwrap_or_default()
}

/// Returns the first names of a path, which are enough to find it.
fn shortened(path: &[String]) -> String {
    path[..path.len().min(3)].join("::")
}

/// Returns the module of `crate::module::…`; an item of the crate's root belongs to `lib`.
fn module_of_path(path: &[String]) -> Option<&str> {
    let name = path.get(1).filter(|_| path[0] == "crate")?;
    Some(if layer(name).is_some() { name } else { "lib" })
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Reads all Rust files below a folder of the crate.
fn files_in(folder: &str) -> io::Result<Sources> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut folders) = (Sources::new(), vec![root.join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = path.strip_prefix(root).map_err(io::Error::other)?;
                found.insert(file.display().to_string(), fs::read_to_string(&path)?);
            }
        }
    }
    Ok(found)
}
