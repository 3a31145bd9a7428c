//! Where the programs of Postgres are. The folder returned holds both `initdb` and `postgres`; no
//! other of it is relied on.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Error;

/// Where to look for `initdb` and `postgres`: taken from the environment by `config`.
#[derive(Debug, Clone, Default)]
pub struct SearchPath {
    /// `POSTGRES_BIN_DIR`: when given, the only folder that counts.
    pub bin_dir: Option<PathBuf>,
    /// `PATH`.
    pub path: Option<OsString>,
}

/// Folders whose children of such a name hold a `bin`: Debian; SUSE; the rpm of the Postgres
/// project; built from source; Homebrew on either Mac and on Linux; Postgres.app.
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

/// The folder of `initdb` and `postgres`. Data can be opened by the major version that made it
/// only, so of several installations the one of that version wins, else `PATH` does, else the
/// newest.
pub(super) fn programs(search: &SearchPath, made_by: Option<u32>) -> Result<PathBuf, Error> {
    if let Some(folder) = &search.bin_dir {
        let folder = std::path::absolute(folder).map_err(Error::io("find", folder))?;
        return if holds_both(&folder) {
            Ok(folder)
        } else {
            Err(Error::NotInBinDir { folder })
        };
    }
    let path = search.path.as_deref().unwrap_or_default();
    let mut found: Vec<PathBuf> = path
        .as_bytes()
        .split(|byte| *byte == b':')
        .map(|folder| PathBuf::from(OsStr::from_bytes(folder)))
        .filter(|folder| folder.is_absolute())
        .collect();
    let mut installed: Vec<PathBuf> = INSTALLED
        .iter()
        .flat_map(|(parent, prefix)| children(Path::new(parent), prefix))
        .collect();
    installed.sort_by_key(|folder| std::cmp::Reverse(version(folder)));
    found.extend(installed);
    found.retain(|folder| holds_both(folder));

    let same = found
        .iter()
        .position(|folder| made_by.is_some() && version(folder) == made_by);
    found
        .into_iter()
        .nth(same.unwrap_or(0))
        .ok_or(Error::NotFound)
}

fn holds_both(folder: &Path) -> bool {
    ["initdb", "postgres"]
        .iter()
        .all(|program| folder.join(program).is_file())
}

fn children(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path().join("bin"))
        .collect()
}

/// The number at the end of the folder's name: 15 of `/usr/lib/postgresql/15/bin`, 16 of
/// `…/postgresql@16/bin`.
fn version(bin: &Path) -> Option<u32> {
    let name = bin.parent()?.file_name()?.to_str()?;
    let digits = name
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |before| before + 1);
    name.get(digits..)?.parse().ok()
}
