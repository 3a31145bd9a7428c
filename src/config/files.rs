//! Reads the values of variables from files: `DATABASE_URL_FILE` names the file with the value of `DATABASE_URL`.
//!
//! For secrets, as container engines mount them: other processes of the user can read the environment of a process.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use secrecy::SecretString;

use super::variables::{ALIASES, PREFIX, names};

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
        let fail = |reason| {
            let variable = format!("{name}{SUFFIX}");
            FileError { variable, reason }
        };
        if environment.contains_key(OsStr::new(name)) {
            return Err(fail(format!("is set, and so is {name}; unset one of them")));
        }
        let text = fs::read_to_string(path);
        let path = Path::new(path).display();
        let text = text.map_err(|error| fail(format!("names {path}: {error}")))?;
        let value = value(&text);
        if value.is_empty() {
            return Err(fail(format!("names {path}, which is empty")));
        }
        resolved.insert(name.into(), value.into());
    }
    Ok(resolved)
}

/// URL of the database and its password, of which one or both are in files that variables name.
#[derive(Debug, Clone)]
pub struct UrlFiles {
    url: Source,
    password: Option<Source>,
}

#[derive(Debug, Clone)]
enum Source {
    Text(SecretString),
    File(PathBuf),
}

impl UrlFiles {
    /// Returns `None` if no variable names a file with the URL or the password, which have these values. `is_option` is true for a
    /// URL of the command line.
    pub(super) fn of(
        environment: &HashMap<OsString, OsString>,
        is_option: bool,
        url: Option<&SecretString>,
        password: Option<&SecretString>,
    ) -> Option<Self> {
        let source = |file: Option<PathBuf>, text: &SecretString| match file {
            Some(path) => Source::File(path),
            None => Source::Text(text.clone()),
        };
        // A URL of the command line comes before that of a variable.
        let url_file = file_of(environment, "database.url").filter(|_| !is_option);
        let password_file = file_of(environment, "database.password");
        let has_files = url_file.is_some() || password_file.is_some();
        let files = Self {
            url: source(url_file, url?),
            password: password.map(|text| source(password_file, text)),
        };
        has_files.then_some(files)
    }

    /// Reads the files again, and returns the URL and the password.
    pub fn read(&self) -> io::Result<(SecretString, Option<SecretString>)> {
        let password = self.password.as_ref().map(Source::read).transpose()?;
        Ok((self.url.read()?, password))
    }
}

impl Source {
    fn read(&self) -> io::Result<SecretString> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => Ok(value(&fs::read_to_string(path)?).into()),
        }
    }
}

/// Returns the file with the value of a key, if that is set by a variable that names one.
fn file_of(environment: &HashMap<OsString, OsString>, key: &str) -> Option<PathBuf> {
    let text = |name: &str| environment.get(OsStr::new(name));
    // The first of the names that is set counts.
    let mut names = names(key);
    names.find_map(
        |name| match (text(&name), text(&format!("{name}{SUFFIX}"))) {
            (None, None) => None,
            (_, file) => Some(file.map(PathBuf::from)),
        },
    )?
}

/// Returns the value in a file: its text without line breaks at the end.
fn value(text: &str) -> &str {
    text.trim_end_matches(['\r', '\n'])
}

fn is_ours(name: &str) -> bool {
    name == "BOOTSTRAP_API_KEY"
        || ALIASES.iter().any(|(_, alias, _)| *alias == name)
        || name
            .strip_prefix(PREFIX)
            .is_some_and(|key| key.starts_with("__"))
}
