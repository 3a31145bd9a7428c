//! Effective settings and their origins, for `config show`.
//!
//! Invariant: they contain no secret.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fmt,
};

use config::{Config, Value, ValueKind};
use serde_json::Value as Json;
use url::Url;

use super::{
    files::SUFFIX,
    variables::{names, variable},
};

/// Effective setting. Displayed as a line of TOML, with its origin in a comment.
#[derive(Debug)]
pub struct Setting {
    /// Key, as `section.key`.
    pub key: String,
    /// Value; secrets are replaced by `***`.
    pub value: Json,
    /// Origin: `default`, the file, the variable, or the option.
    pub origin: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = format!("{} = {}", self.key, toml(&self.value));
        write!(f, "{setting:<60} # {}", self.origin)
    }
}

/// Returns the settings of `layers`, sorted by key.
pub fn list(layers: &Config, environment: &HashMap<OsString, OsString>) -> Vec<Setting> {
    let mut settings = Vec::new();
    collect(&mut settings, "", &layers.cache, environment);
    settings.sort_by(|one, other| one.key.cmp(&other.key));
    settings
}

fn collect(
    settings: &mut Vec<Setting>,
    key: &str,
    value: &Value,
    environment: &HashMap<OsString, OsString>,
) {
    if let ValueKind::Table(table) = &value.kind {
        for (name, value) in table {
            let dot = if key.is_empty() { "" } else { "." };
            collect(settings, &format!("{key}{dot}{name}"), value, environment);
        }
        return;
    }
    settings.push(Setting {
        key: key.to_owned(),
        value: match key {
            "database.url" => database_url(&value.to_string())
                .unwrap_or_else(|| HIDDEN.to_owned())
                .into(),
            "images.url" | "telemetry.otlp_endpoint" | "telemetry.otlp_traces_endpoint" => {
                without_password(&value.to_string()).into()
            }
            "database.password" => HIDDEN.into(),
            "telemetry.otlp_headers" => names_alone(&value.to_string()).into(),
            _ => value.clone().try_deserialize().unwrap_or_default(),
        },
        origin: origin(key, value, environment),
    });
}

/// Returns the name of the layer: the file or the option, or the variable for the environment.
fn origin(key: &str, value: &Value, environment: &HashMap<OsString, OsString>) -> String {
    match value.origin() {
        None => "default".to_owned(),
        Some("the environment") => {
            let mut names = names(key).flat_map(|name| [format!("{name}{SUFFIX}"), name.into()]);
            let set = names.find(|name| environment.contains_key(OsStr::new(name)));
            set.unwrap_or_else(|| variable(key))
        }
        Some(file_or_option) => file_or_option.to_owned(),
    }
}

/// Replacement for a secret.
const HIDDEN: &str = "***";

/// Replaces the password and the values of parameters that may be secret. `None` if it is not clear which part is the password.
fn database_url(text: &str) -> Option<String> {
    const PUBLIC: [&str; 6] = ["dbname", "host", "hostaddr", "port", "sslmode", "user"];
    let (scheme, rest) = text.split_once("://")?;
    let (credentials, rest) = match rest.split_once('@') {
        None => (String::new(), rest),
        Some((credentials, rest)) => {
            let (user, password) = match credentials.split_once(':') {
                Some((user, _)) => (user, format!(":{HIDDEN}")),
                None => (credentials, String::new()),
            };
            if rest.contains('@') || credentials.contains('/') || user.contains('?') {
                return None;
            }
            (format!("{user}{password}@"), rest)
        }
    };
    let (address, query) = match rest.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (rest, None),
    };
    let query = query.map_or_else(String::new, |query| {
        let parameters = query
            .split('&')
            .map(|parameter| match parameter.split_once('=') {
                Some((name, value)) if PUBLIC.contains(&name) && !value.contains('=') => {
                    parameter.to_owned()
                }
                Some((name, _)) => format!("{name}={HIDDEN}"),
                None => HIDDEN.to_owned(),
            });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    Some(format!("{scheme}://{credentials}{address}{query}"))
}

/// Replaces the passwords in a URL, or the whole text if it is not a URL.
fn without_password(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        return HIDDEN.to_owned();
    };
    if url.password().is_some() && url.set_password(Some(HIDDEN)).is_err() {
        return HIDDEN.to_owned();
    }
    if url.query().is_some() {
        let mut pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        for (name, value) in &mut pairs {
            if name.to_lowercase().contains("password") {
                HIDDEN.clone_into(value);
            }
        }
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.into()
}

/// Replaces the values of headers.
fn names_alone(headers: &str) -> String {
    let headers = headers.split(',').filter_map(|it| it.split_once('='));
    let names = headers.map(|(name, _)| format!("{}={HIDDEN}", name.trim()));
    names.collect::<Vec<_>>().join(",")
}

/// Formats a value as TOML. The escapes of JSON strings are valid in TOML.
fn toml(value: &Json) -> String {
    match value {
        Json::Array(values) => {
            let values: Vec<_> = values.iter().map(toml).collect();
            format!("[{}]", values.join(", "))
        }
        Json::Object(table) => {
            let pairs = table.iter();
            let pairs: Vec<_> = pairs
                .map(|(key, value)| format!("{key} = {}", toml(value)))
                .collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("postgres://u:secret@h/d", "postgres://u:***@h/d"),
            ("postgres://u@h:1/d", "postgres://u@h:1/d"),
            (
                "postgres://h/d?user=u&password=secret&sslpassword=secret",
                "postgres://h/d?user=u&password=***&sslpassword=***",
            ),
            ("postgres://u:sec?ret@h/d", "postgres://u:***@h/d"),
            (
                "postgres://u:s@[::1]:1/d?host=/run&sslkey=secret",
                "postgres://u:***@[::1]:1/d?host=/run&sslkey=***",
            ),
            (
                "postgres://h/d?password=sec&ret",
                "postgres://h/d?password=***&***",
            ),
            ("postgres://u:12/sec?ret=ret@h/d", "***"),
            ("postgres://u:sec@ret@h/d", "***"),
            ("postgres://u@h/d?password=sec@ret", "***"),
            ("host=h password=secret", "***"),
        ] {
            assert_eq!(
                database_url(url).as_deref().unwrap_or(HIDDEN),
                shown,
                "{url}"
            );
        }
        for (url, shown) in [
            ("https://u:secret@h/d", "https://u:***@h/d"),
            ("https://h/d?password=secret", "https://h/d?password=***"),
            ("secret", "***"),
        ] {
            assert_eq!(without_password(url).replace("%2A", "*"), shown);
        }
    }
}
