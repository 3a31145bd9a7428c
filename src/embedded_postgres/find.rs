//! Finds the directory that holds the PostgreSQL programs `initdb` and `postgres`.

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::Error;

/// Locations to search for the programs. `config` reads them from the environment.
#[derive(Debug, Clone, Default)]
pub struct SearchPath {
    /// `POSTGRES_BIN_DIR`: if set, the only directory searched.
    pub bin_dir: Option<PathBuf>,
    /// `PATH`.
    pub path: Option<OsString>,
}

/// Parents and name prefixes of directories with a `bin`: Debian, SUSE, the PostgreSQL project's RPM, built from
/// source, Homebrew on both kinds of Mac and on Linux, Postgres.app.
const INSTALLED: [(&str, &str); 8] = [
    ("/usr/lib/postgresql", ""),
    ("/usr/lib", "postgresql"),
    ("/usr", "pgsql-"),
    ("/usr/local", "pgsql"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql"),
    ("/Applications/Postgres.app/Contents/Versions", ""),
];

/// Returns the directory of the programs. Only the major version that made the data can open it, so an installation of
/// that version is preferred, then one on `PATH`, then the newest.
pub(super) fn programs(search: &SearchPath, made_by: Option<u32>) -> Result<PathBuf, Error> {
    if let Some(folder) = &search.bin_dir {
        let folder = std::path::absolute(folder).map_err(Error::io("find", folder))?;
        if !holds_both(&folder) {
            return Err(Error::NotInBinDir { folder });
        }
        return Ok(folder);
    }
    let mut installed: Vec<PathBuf> = INSTALLED
        .iter()
        .flat_map(|(parent, prefix)| children(Path::new(parent), prefix))
        .collect();
    installed.sort_by_key(|folder| Reverse(version(folder)));
    let path = search.path.as_deref().unwrap_or_default().as_bytes();
    let mut found: Vec<PathBuf> = path
        .split(|byte| *byte == b':')
        .map(|folder| PathBuf::from(OsStr::from_bytes(folder)))
        .filter(|folder| folder.is_absolute())
        .chain(installed)
        .filter(|folder| holds_both(folder))
        .collect();
    // The sort is stable.
    found.sort_by_key(|folder| made_by.is_none() || version(folder) != made_by);
    found.into_iter().next().ok_or(Error::NotFound)
}

fn holds_both(folder: &Path) -> bool {
    ["initdb", "postgres"].map(|program| folder.join(program).is_file()) == [true; 2]
}

fn children(parent: &Path, prefix: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(move |entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().join("bin"))
}

/// Returns the number at the end of the directory name: 15 for `/usr/lib/postgresql/15/bin`, 16 for
/// `…/postgresql@16/bin`.
fn version(bin: &Path) -> Option<u32> {
    let name = bin.parent()?.file_name()?.to_str()?;
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[digits..].parse().ok()
}
