//! Putting a file into the Hugging Face cache exactly as `huggingface_hub` does, so that Python finds it too.
//!
//! ```text
//! models--OWNER--NAME/blobs/SHA256                       the file
//! models--OWNER--NAME/snapshots/REVISION/FILE  ->  ../../blobs/SHA256
//! ```
//!
//! `refs/` maps branches to revisions; `huggingface_hub` writes nothing there for a file that is asked for by its
//! full revision, and neither does this.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::WeightsCommandError;

/// Writes `bytes` into the cache folder under their SHA-256 and makes the pinned snapshot point to them. Both
/// steps are a rename: another process sees the old state or the new one, and an interruption leaves the old one.
///
/// Returns the snapshot's path.
pub(super) fn place(cache: &Path, sha256: &str, bytes: &[u8]) -> Result<PathBuf, WeightsCommandError> {
    let link = tt_backend::weights::hub_snapshot_file(cache);
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| WeightsCommandError::Write { path, source }
    };
    let (Some(snapshot), Some(repo)) = (link.parent(), link.ancestors().nth(3)) else {
        return Err(failed(&link)(io::Error::other("not a path in a cache")));
    };
    let blobs = repo.join("blobs");
    std::fs::create_dir_all(&blobs).map_err(failed(&blobs))?;
    std::fs::create_dir_all(snapshot).map_err(failed(snapshot))?;

    write_by_rename(&blobs.join(sha256), &blobs, bytes).map_err(failed(&blobs.join(sha256)))?;
    if link_by_rename(&link, snapshot, sha256).is_err() {
        // A file system without links: `huggingface_hub` puts a copy there instead.
        write_by_rename(&link, snapshot, bytes).map_err(failed(&link))?;
    }
    Ok(link)
}

fn write_by_rename(path: &Path, folder: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut builder = tempfile::Builder::new();
    builder.suffix(".incomplete");
    #[cfg(unix)]
    {
        // Temporary files are private by default; files in the cache follow the umask.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file: NamedTempFile = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(unix)]
fn link_by_rename(link: &Path, folder: &Path, sha256: &str) -> io::Result<()> {
    let target = Path::new("..").join("..").join("blobs").join(sha256);
    let temporary = tempfile::Builder::new()
        .suffix(".incomplete")
        .make_in(folder, |path| std::os::unix::fs::symlink(&target, path))?;
    temporary.persist(link)?;
    Ok(())
}

#[cfg(not(unix))]
fn link_by_rename(_link: &Path, _folder: &Path, _sha256: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
