//! Counts the lines of code of a file and of its test functions.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned as _;

/// Returns the number of lines of code, without inline tests, comments and blank lines.
pub fn code_lines(text: &str) -> usize {
    let tests = inline_tests(text);
    text.lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
        .filter(|(_, number)| !tests.iter().any(|lines| lines.contains(number)))
        .count()
}

/// Returns the lines of each inline module under `#[cfg(test)]`.
fn inline_tests(text: &str) -> Vec<std::ops::RangeInclusive<usize>> {
    let items = syn::parse_file(text).map(|file| file.items);
    let items = items.unwrap_or_default().into_iter();
    items
        .filter_map(|item| match item {
            syn::Item::Mod(module) if is_test_only(&module.attrs) => Some(module.span()),
            _ => None,
        })
        .map(|span| span.start().line..=span.end().line)
        .collect()
}

/// Returns true if `#[cfg(test)]` is among the attributes.
pub fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|argument| argument.is_ident("test"))
    })
}

/// Test function: the line and number of lines from `fn` to its closing brace.
pub struct TestFunction {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// Returns the functions with an attribute `#[test]` or `#[…::test]`, also inside modules and macros.
pub fn test_functions(text: &str) -> impl Iterator<Item = TestFunction> {
    let mut found = Vec::new();
    if let Ok(tokens) = text.parse::<TokenStream>() {
        search(tokens, &mut found);
    }
    found.into_iter()
}

/// Searches tokens, because a macro such as `proptest!` does not contain items that `syn` can parse.
fn search(tokens: TokenStream, found: &mut Vec<TestFunction>) {
    let mut is_test = false;
    let mut function: Option<(String, usize)> = None;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word == "fn" => {
                if let Some(TokenTree::Ident(name)) = tokens.peek()
                    && is_test
                {
                    function = Some((name.to_string(), word.span().start().line));
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                is_test |= is_test_attribute(group.stream());
            }
            TokenTree::Group(group) => {
                let is_body = group.delimiter() == Delimiter::Brace;
                if is_body && let Some((name, line)) = function.take() {
                    let lines = group.span_close().end().line - line + 1;
                    found.push(TestFunction { name, line, lines });
                }
                is_test &= !is_body;
                search(group.stream(), found);
            }
            TokenTree::Punct(mark) if mark.as_char() == ';' => is_test = false,
            _ => {}
        }
    }
}

/// Returns true for the content of `#[test]` and `#[tokio::test(…)]`, but not for that of `#[cfg(test)]`.
fn is_test_attribute(content: TokenStream) -> bool {
    let path = content
        .into_iter()
        .take_while(|token| !matches!(token, TokenTree::Group(_)));
    let words = path.filter(|token| matches!(token, TokenTree::Ident(_)));
    words.last().is_some_and(|word| word.to_string() == "test")
}
