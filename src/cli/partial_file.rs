//! Files that commands write.

use std::{
    fs::{File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use tempfile::NamedTempFile;

use super::output::Error;

/// File that gets its name once it is complete. Dropped before, it is removed.
pub struct PartialFile<'a> {
    file: &'a Path,
    /// `FILE.partial`.
    partial: NamedTempFile,
}

impl<'a> PartialFile<'a> {
    /// Creates a file with these permissions, without those that the user's mask takes away. Fails if it exists.
    pub fn create(file: &'a Path, mode: u32) -> Result<Self, Error> {
        let named = |error: io::Error| format!("{}: {error}", file.display());
        if file.try_exists().map_err(named)? {
            return Err(named(io::ErrorKind::AlreadyExists.into()).into());
        }
        let name = file.file_name().ok_or("this is not the name of a file")?;
        let mut partial = tempfile::Builder::new();
        partial.prefix(name).suffix(".partial").rand_bytes(0);
        partial.permissions(Permissions::from_mode(mode));
        let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
        let partial = partial.tempfile_in(folder.unwrap_or(Path::new(".")));
        let partial = partial.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => format!(
                "{0}.partial exists: another command writes it, or one was interrupted; then: rm {0}.partial",
                file.display()
            ),
            _ => named(error),
        })?;
        Ok(Self { file, partial })
    }

    /// Opens it for writing.
    pub fn open(&self) -> io::Result<File> {
        self.partial.as_file().try_clone()
    }

    /// Gives the file its name, once its content is on the disk. Fails if there is a file of this name.
    pub fn finish(self) -> Result<(), Error> {
        self.partial.as_file().sync_all()?;
        let persisted = self.partial.persist_noclobber(self.file);
        persisted.map_err(|error| format!("{}: {error}", self.file.display()))?;
        Ok(())
    }
}
