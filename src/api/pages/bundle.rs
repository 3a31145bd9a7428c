//! The modules of the console as one script: at a distance, each level of imports would cost a round trip.
//!
//! The modules are written so that this takes no parser: an import is one line, `import { … } from "./….js";`, and an export begins a
//! declaration. Folders have no folders. No module imports itself, directly or through others, and none exports a variable that changes.

use std::collections::HashSet;

/// Returns a script of the module with the path `main` and of all that it imports, directly or not. `modules` are pairs of a path and a
/// text. Each module becomes a function, called once, that returns the exports; imported modules come first. Lines of comments and
/// indentation are left out.
pub(super) fn bundle(main: &str, modules: &[(&str, &str)]) -> String {
    let mut script = String::from("\"use strict\";\nconst modules = {};\n");
    append(main, modules, &mut HashSet::new(), &mut script);
    script
}

/// Appends a module to the script behind those that it imports, unless it is `done`.
fn append(path: &str, modules: &[(&str, &str)], done: &mut HashSet<String>, script: &mut String) {
    let module = modules.iter().find(|(name, _)| *name == path);
    let Some((_, text)) = module.filter(|_| done.insert(path.to_owned())) else {
        return;
    };
    let mut exports = Vec::new();
    let mut body = String::new();
    for line in text.lines().map(str::trim_start) {
        let is_comment = ["//", "/**", "*"]
            .iter()
            .any(|begin| line.starts_with(begin));
        if line.is_empty() || is_comment {
            continue;
        }
        if let Some((names, from)) = import(line) {
            let imported = resolve(path, from);
            append(&imported, modules, done, script);
            body.extend(["const {", names, "} = modules[\"", &imported, "\"];\n"]);
            continue;
        }
        let declaration = line.strip_prefix("export ");
        exports.extend(declaration.and_then(declared_name));
        body += declaration.unwrap_or(line);
        body.push('\n');
    }
    let exports = exports.join(", ");
    script.extend(["modules[\"", path, "\"] = (() => {\n", &body]);
    script.extend(["return { ", &exports, " };\n})();\n"]);
}

/// Returns the names and the path of an import.
fn import(line: &str) -> Option<(&str, &str)> {
    let import = line.strip_prefix("import {")?.strip_suffix("\";")?;
    import.split_once("} from \"")
}

/// Returns the path of a module that `path` imports as `from`.
fn resolve(path: &str, from: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    match from.strip_prefix("../") {
        Some(rest) => rest.to_owned(),
        None => [folder, from.trim_start_matches("./")].join("/"),
    }
    .trim_start_matches('/')
    .to_owned()
}

/// Returns the name that a declaration declares.
fn declared_name(declaration: &str) -> Option<&str> {
    let words = declaration.split(|it: char| !it.is_alphanumeric() && it != '_');
    let keywords = ["async", "function", "const", "class", ""];
    words.into_iter().find(|word| !keywords.contains(word))
}
