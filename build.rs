//! Names the file that git changes with each commit, so that the program is built again after one: it includes this file. The library is
//! not, as this script does not run again.

use std::{path::Path, process::Command};

fn main() {
    // Never set: without such a line, each change of a file would run this script.
    println!("cargo::rerun-if-env-changed=COMMIT_LOG");
    let git = Command::new("git")
        .args(["rev-parse", "--git-path", "logs/HEAD"])
        .output();
    let log = git.ok().and_then(|it| String::from_utf8(it.stdout).ok());
    let log = log.as_deref().map(|log| Path::new(log.trim_end()));
    // Without git, no commit follows.
    let log = log
        .filter(|log| log.is_file())
        .unwrap_or(Path::new("Cargo.toml"));
    if let Ok(log) = log.canonicalize() {
        println!("cargo::rustc-env=COMMIT_LOG={}", log.display());
    }
}
