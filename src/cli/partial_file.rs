//! Files that commands write.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, unistd::geteuid};
use tempfile::{NamedTempFile, TempPath};

use super::output::{Error, Named};

/// File that gets its name once it is complete. Dropped before, it is removed. What an interrupted command has left is replaced.
pub struct PartialFile<'a> {
    file: &'a Path,
    /// `FILE.partial`, which is locked.
    partial: NamedTempFile,
}

impl<'a> PartialFile<'a> {
    /// Creates a file with these permissions, without those that the user's mask takes away. Fails if it exists, or another command
    /// writes it.
    pub fn create(file: &'a Path, mode: u32) -> Result<Self, Error> {
        let named = |error: io::Error| format!("{}: {error}", file.display());
        if file.try_exists().map_err(named)? {
            return Err(format!(
                "{} exists already; choose another name, or remove it",
                file.display()
            )
            .into());
        }
        file.file_name().ok_or("this is not the name of a file")?;
        let mut path = file.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(mode);
        // In a folder of all users, the file may be another's, or a link to it.
        let opened = options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path);
        let opened = opened.map_err(|error| format!("{}: {error}", path.display()))?;
        if !lock(&opened, &path).map_err(named)? {
            return Err(format!("{}: another command or user writes it", path.display()).into());
        }
        opened.set_len(0).map_err(named)?;
        let path = TempPath::try_from_path(path).map_err(named)?;
        let partial = NamedTempFile::from_parts(opened, path);
        Ok(Self { file, partial })
    }

    /// Opens it for writing.
    pub fn open(&self) -> io::Result<impl Write + use<>> {
        let name = self.partial.path().display().to_string();
        Ok(Named::new(name, self.partial.as_file().try_clone()?))
    }

    /// Gives the file its name, once its content is on the disk. Fails if there is a file of this name.
    pub fn finish(self) -> Result<(), Error> {
        let named = |error: io::Error| format!("{}: {error}", self.file.display());
        self.partial.as_file().sync_all().map_err(named)?;
        let persisted = self.partial.persist_noclobber(self.file);
        persisted.map_err(|error| named(error.error))?;
        Ok(())
    }
}

/// Removes the partial files in the folder of `file` that interrupted commands have left: those of this user that begin with these
/// bytes, and that no command writes. Returns their paths.
pub fn remove_interrupted(file: &Path, beginning: &[u8]) -> Vec<PathBuf> {
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    let files = fs::read_dir(folder.unwrap_or(Path::new(".")));
    let paths = files.into_iter().flatten().flatten().map(|it| it.path());
    let partial = paths.filter(|path| path.extension().is_some_and(|it| it == "partial"));
    let is_removed = |path: &PathBuf| {
        let mut options = File::options();
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut opened = options.read(true).custom_flags(flags.bits()).open(path)?;
        let mut found = vec![0; beginning.len()];
        opened.read_exact(&mut found)?;
        let is_interrupted = found == beginning && lock(&opened, path)?;
        if is_interrupted {
            fs::remove_file(path)?;
        }
        Ok::<_, io::Error>(is_interrupted)
    };
    partial
        .filter(|path| is_removed(path).unwrap_or_default())
        .collect()
}

/// Locks a file of this user until it is closed. Returns false if it is locked, another user's, or no longer at `path`.
fn lock(file: &File, path: &Path) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Another command may have completed it between the opening and the lock.
    let (opened, named) = (file.metadata()?, fs::symlink_metadata(path));
    let is_there =
        named.is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()));
    Ok(is_there && opened.uid() == geteuid().as_raw())
}
