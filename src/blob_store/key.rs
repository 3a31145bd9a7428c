//! Generates and recognises the keys of stored objects. Objects with other names are left alone.

use std::{io, path::Path, time::SystemTime};

/// Generates a unique key.
pub(super) fn new() -> Result<String, getrandom::Error> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)?;
    let name = format!("{:032x}", u128::from_be_bytes(random));
    // One directory with a million files is slow to list and to back up.
    Ok(format!("{}/{name}", &name[..2]))
}

/// Returns the path of a key in the store.
pub(super) fn path(key: &str) -> Result<object_store::path::Path, object_store::Error> {
    Ok(object_store::path::Path::parse(key)?)
}

/// Returns the names of the directories that contain keys.
pub(super) fn folders() -> impl Iterator<Item = String> + Send {
    (0..=u8::MAX).map(|first| format!("{first:02x}"))
}

/// Returns true if the name is a key: `ab/ab` and 30 more digits.
pub(super) fn is_one(name: &str) -> bool {
    name.split_once('/').is_some_and(|(folder, name)| {
        folder.len() == 2
            && name.starts_with(folder)
            && name.len() == 32
            && name.bytes().all(is_digit)
    })
}

/// Returns true for the temporary names of `object_store`, which it renames to keys: `ab/ab…#1`.
fn is_staged(name: &str) -> bool {
    name.split_once('#').is_some_and(|(key, number)| {
        is_one(key) && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Removes temporary files that a crash left before this time. `object_store` does not list them.
pub(super) fn remove_staged(root: &Path, before: SystemTime) -> io::Result<()> {
    use io::ErrorKind as E;
    for folder in folders() {
        let files = match std::fs::read_dir(root.join(&folder)) {
            Err(error) if matches!(error.kind(), E::NotFound | E::NotADirectory) => continue,
            files => files?,
        };
        for file in files {
            let file = file?;
            let name = file.file_name().into_string().unwrap_or_default();
            if is_staged(&format!("{folder}/{name}")) {
                match remove_if_old(&file, before) {
                    // Completed meanwhile, or removed by another replica.
                    Err(error) if error.kind() == E::NotFound => {}
                    done => done?,
                }
            }
        }
    }
    Ok(())
}

fn remove_if_old(file: &std::fs::DirEntry, before: SystemTime) -> io::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.modified()? < before {
        std::fs::remove_file(file.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_ours() {
        let key = new().expect("random bits");
        assert!(is_one(&key) && !is_staged(&key) && is_staged(&format!("{key}#12")));
        assert!(!is_staged(&format!("{key}#")) && !is_staged(&format!("{key}#x")));
        for other in [
            "",
            "ab",
            "ab/ab02",
            "ab/cd000000000000000000000000000000",
            "AB/AB000000000000000000000000000000",
            "ab/ab00000000000000000000000000000g",
            "ab/ab000000000000000000000000000000.jpg",
            "a/ab/ab000000000000000000000000000000",
            "ab/ab00000000000000000000000000000/",
        ] {
            let staged = format!("{other}#1");
            assert!(!is_one(other) && !is_staged(&staged), "{other}");
        }
    }
}
