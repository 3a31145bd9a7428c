//! Names the file that git changes with each commit, so that the program is built again after one: it includes this file. The library is
//! not, as this script does not run again.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    // Cargo runs this in the folder of the package.
    let manifest = Path::new("Cargo.toml");
    let manifest = manifest.canonicalize().unwrap_or(manifest.to_owned());
    let (log, config) = (git_path("logs/HEAD"), git_path("config"));
    // It runs again if the folder of the project, or that of git, is removed or moved.
    for kept in [Some(&manifest), config.as_ref()].into_iter().flatten() {
        println!("cargo::rerun-if-changed={}", kept.display());
    }
    // Without git, no commit follows.
    println!(
        "cargo::rustc-env=COMMIT_LOG={}",
        log.unwrap_or(manifest).display()
    );
}

/// Returns the path of a file of git, if there is one.
fn git_path(file: &str) -> Option<PathBuf> {
    let mut git = Command::new("git");
    let found = git.args(["rev-parse", "--git-path", file]).output().ok()?;
    let path = String::from_utf8(found.stdout).ok()?;
    let path = Path::new(path.trim_end());
    path.is_file().then(|| path.canonicalize().ok())?
}
