//! Reads the values of variables from files: `DATABASE_URL_FILE` names the file with the value of `DATABASE_URL`.
//!
//! For secrets, as container engines mount them: other processes of the user can read the environment of a process.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs,
    path::Path,
};

use super::variables::{ALIASES, PREFIX};

/// Suffix of the names of variables that name a file.
pub(super) const SUFFIX: &str = "_FILE";

/// File that a variable names and that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("configuration: {variable} {reason}")]
pub struct FileError {
    variable: String,
    reason: String,
}

/// Replaces each `NAME_FILE` by `NAME` with the content of the file, without line breaks at its end. Fails if the file
/// cannot be read or is empty, or `NAME` is set too. Errors contain no content.
pub(super) fn resolve(
    environment: &HashMap<OsString, OsString>,
) -> Result<HashMap<OsString, OsString>, FileError> {
    let mut resolved = environment.clone();
    for (variable, path) in environment {
        let target = variable.to_str().and_then(|it| it.strip_suffix(SUFFIX));
        let Some(name) = target.filter(|name| is_ours(name)) else {
            continue;
        };
        resolved.remove(variable);
        if path.is_empty() {
            continue;
        }
        let fail = |reason| {
            let variable = format!("{name}{SUFFIX}");
            FileError { variable, reason }
        };
        if (environment.get(OsStr::new(name))).is_some_and(|value| !value.is_empty()) {
            return Err(fail(format!("is set, and so is {name}; unset one of them")));
        }
        let text = fs::read_to_string(path);
        let path = Path::new(path).display();
        let text = text.map_err(|error| fail(format!("names {path}: {error}")))?;
        let value = text.trim_end_matches(['\r', '\n']);
        if value.is_empty() {
            return Err(fail(format!("names {path}, which is empty")));
        }
        resolved.insert(name.into(), value.into());
    }
    Ok(resolved)
}

fn is_ours(name: &str) -> bool {
    name == "BOOTSTRAP_API_KEY"
        || ALIASES.iter().any(|(_, alias, _)| *alias == name)
        || name
            .strip_prefix(PREFIX)
            .is_some_and(|key| key.starts_with("__"))
}
