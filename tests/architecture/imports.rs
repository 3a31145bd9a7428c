//! Lists the paths that a source file mentions: in `use` items, code, attributes and macro arguments.
//!
//! Each has its line, and is resolved from `crate` or an external crate's name on.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use syn::UseTree;
use syn::parse::{Parse, ParseStream, Parser, discouraged::Speculative};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A path as its names: `crate::db::pets` is `["crate", "db", "pets"]`; a glob ends in `"*"`.
pub type Names = Vec<String>;

/// A path that a file mentions.
pub struct Import {
    pub line: usize,
    pub path: Names,
    /// True under `#[cfg(test)]`.
    pub in_test: bool,
}

#[derive(Default)]
pub struct Imports {
    /// Every path mentioned.
    pub paths: Vec<Import>,
    /// Every `mod x`, with its line.
    pub modules: Vec<(usize, String)>,
    /// Path of the module being read, including inline modules.
    here: Names,
    /// True inside a module under `#[cfg(test)]`.
    in_test: bool,
    /// Full paths of the names that this file declares with `use` or `mod`.
    meanings: BTreeMap<String, Names>,
}

impl Imports {
    /// Reads `text`, the source of the module `here`.
    pub fn read(here: Names, text: &str) -> syn::Result<Self> {
        let mut imports = Self {
            here,
            ..Self::default()
        };
        imports.visit_file(&syn::parse_file(text)?);
        for import in &mut imports.paths {
            // Twice, for `use crate::db; use db::pets;`.
            for _ in 0..2 {
                if let Some(meaning) = imports.meanings.get(&import.path[0]) {
                    import.path.splice(..1, meaning.iter().cloned());
                }
            }
        }
        Ok(imports)
    }

    /// Records a path; replaces `self`, `super` and the library's name in the binary by paths from `crate`.
    fn note(&mut self, line: usize, mut path: Names) -> Names {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let ancestor = self.here.len().saturating_sub(supers).max(1);
        match path[0].as_str() {
            "self" => drop(path.splice(..1, self.here.iter().cloned())),
            "super" => drop(path.splice(..supers, self.here[..ancestor].iter().cloned())),
            "pet_inventory" => "crate".clone_into(&mut path[0]),
            _ => {}
        }
        self.paths.push(Import {
            line,
            path: path.clone(),
            in_test: self.in_test,
        });
        path
    }

    fn note_use(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: &dyn ToString| [prefix, &[name.to_string()]].concat();
        let (path, name) = match tree {
            UseTree::Path(it) => return self.note_use(&it.tree, &with(&it.ident)),
            UseTree::Group(it) => return it.items.iter().for_each(|it| self.note_use(it, prefix)),
            UseTree::Glob(_) => (with(&"*"), None),
            UseTree::Name(it) if it.ident == "self" => (prefix.to_vec(), prefix.last().cloned()),
            UseTree::Name(it) => (with(&it.ident), Some(it.ident.to_string())),
            UseTree::Rename(it) if it.ident == "self" && !prefix.is_empty() => {
                (prefix.to_vec(), Some(it.rename.to_string()))
            }
            UseTree::Rename(it) => (with(&it.ident), Some(it.rename.to_string())),
        };
        let path = self.note(line_of(tree), path);
        self.meanings.extend(name.map(|name| (name, path)));
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_use(&item.tree, &[]);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        self.here.push(name.clone());
        self.meanings.insert(name.clone(), self.here.clone());
        self.modules.push((line_of(&item.ident), name));
        let outer = self.in_test;
        self.in_test |= is_test_only(&item.attrs);
        visit::visit_item_mod(self, item);
        self.in_test = outer;
        self.here.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A single name is local, or recorded at its `use`.
        if path.segments.len() > 1 {
            let names = path
                .segments
                .iter()
                .map(|it| it.ident.to_string())
                .collect();
            self.note(line_of(path), names);
        }
        visit::visit_path(self, path);
    }

    /// Searches macro and attribute arguments, which cannot be parsed as items.
    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        let search = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Some(item) = take::<syn::ItemUse>(input) {
                    self.visit_item_use(&item);
                } else if let Some(path) = take::<syn::ExprPath>(input) {
                    self.visit_expr_path(&path);
                } else if let Some(text) = take::<syn::LitStr>(input) {
                    // As in `#[serde(with = "crate::config::seconds")]`.
                    if let Ok(path) = text.parse::<syn::Path>()
                        && path.segments[0].ident == "crate"
                    {
                        self.visit_path(&path);
                    }
                } else if let TokenTree::Group(group) = input.parse()? {
                    self.visit_token_stream(&group.stream());
                }
            }
            Ok(())
        };
        _ = search.parse2(tokens.clone());
    }
}

fn take<T: Parse>(input: ParseStream<'_>) -> Option<T> {
    let ahead = input.fork();
    let taken = ahead.parse().ok()?;
    input.advance_to(&ahead);
    Some(taken)
}

fn line_of(node: &impl Spanned) -> usize {
    node.span().start().line
}

/// Returns true if `#[cfg(test)]` is among the attributes.
fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|argument| argument.is_ident("test"))
    })
}
