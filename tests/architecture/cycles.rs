//! Finds import cycles, in each folder between its `mod.rs`, its other files and its subfolders.
//!
//! A path is an import from the file that its longest prefix names, so that `super::Error` is an import from `mod.rs`
//! even if `mod.rs` re-exports it from `error.rs`. Inline modules under `#[cfg(test)]` do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{imports::Imports, module_path};

/// Imports between the modules of one folder: importing module, imported module, and the place of one such import.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Place<'a>>>;

struct Place<'a> {
    file: &'a str,
    line: usize,
    path: String,
}

/// Returns one cycle of each folder that has any.
pub fn violations(imports: &BTreeMap<&str, Imports>) -> Vec<String> {
    let modules: BTreeMap<Vec<String>, &str> = imports
        .keys()
        .filter(|file| **file != "src/main.rs")
        .map(|file| (module_path(file), *file))
        .collect();
    let mut graphs: BTreeMap<&[String], Graph<'_>> = BTreeMap::new();
    for (from, file) in &modules {
        let in_code = imports[file].paths.iter().filter(|import| !import.in_test);
        for import in in_code {
            let Some(to) = owner(&modules, &import.path) else {
                continue;
            };
            let names_ancestor = *to == import.path && from.starts_with(to);
            if from == to || names_ancestor {
                continue;
            }
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if shared == 1 {
                // Between the modules of the crate, the rule of layers excludes cycles.
                continue;
            }
            let place = Place {
                file,
                line: import.line,
                path: import.path.join("::"),
            };
            let graph = graphs.entry(&from[..shared]).or_default();
            let imported = graph.entry(node(from, shared)).or_default();
            imported.entry(node(to, shared)).or_insert(place);
        }
    }
    graphs
        .values()
        .filter_map(|graph| Some(violation(graph, &shortest_cycle(graph)?)))
        .collect()
}

/// Returns the name of a module in the graph of its ancestor of `depth` names.
fn node(module: &[String], depth: usize) -> &str {
    module.get(depth).map_or("mod", String::as_str)
}

/// Returns the module whose file has the item that `path` names.
fn owner<'a>(modules: &'a BTreeMap<Vec<String>, &str>, path: &[String]) -> Option<&'a Vec<String>> {
    let mut prefixes = (2..=path.len()).rev().map(|length| &path[..length]);
    prefixes.find_map(|prefix| Some(modules.get_key_value(prefix)?.0))
}

/// Returns the modules of a shortest cycle, in the order of their imports.
fn shortest_cycle<'a>(graph: &Graph<'a>) -> Option<Vec<&'a str>> {
    let cycles = graph.keys().filter_map(|start| cycle_from(graph, start));
    cycles.min_by_key(Vec::len)
}

fn cycle_from<'a>(graph: &Graph<'a>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut reached = BTreeSet::new();
    let mut paths = VecDeque::from([vec![start]]);
    while let Some(path) = paths.pop_front() {
        let last = path.last()?;
        for next in graph.get(last).into_iter().flat_map(BTreeMap::keys) {
            if *next == start {
                return Some(path);
            }
            if reached.insert(*next) {
                paths.push_back([&path[..], &[next]].concat());
            }
        }
    }
    None
}

fn violation(graph: &Graph<'_>, cycle: &[&str]) -> String {
    let next = cycle.iter().cycle().skip(1);
    let places: Vec<&Place<'_>> = cycle.iter().zip(next).map(|(a, b)| &graph[a][b]).collect();
    let imports: Vec<String> = places
        .iter()
        .map(|place| format!("{}:{} imports `{}`", place.file, place.line, place.path))
        .collect();
    format!(
        "{}:{}: import cycle: {}. Move what both need to a file of its own, and import it from there",
        places[0].file,
        places[0].line,
        imports.join(", ")
    )
}
