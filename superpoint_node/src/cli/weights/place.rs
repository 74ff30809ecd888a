//! Putting a file into the Hugging Face cache exactly as `huggingface_hub` does, so that Python finds it too.
//!
//! ```text
//! models--OWNER--NAME/blobs/SHA256                       the file
//! models--OWNER--NAME/snapshots/REVISION/FILE  ->  ../../blobs/SHA256
//! ```
//!
//! `refs/` maps branches to revisions; `huggingface_hub` writes nothing there for a file that is asked for by its
//! full revision, and neither does this.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;

/// Writes `bytes` into the cache folder under their SHA-256 and makes the pinned snapshot point to them. Both
/// steps are a rename: another process sees the old state or the new one, and an interruption leaves the old one.
///
/// Returns the snapshot's path.
pub(super) fn place(cache: &Path, sha256: &str, bytes: &[u8]) -> anyhow::Result<PathBuf> {
    let link = tt_backend::weights::hub_snapshot_file(cache);
    let snapshot = link.parent().context("a snapshot's file has a folder")?;
    let repo = link.ancestors().nth(3).context("a snapshot is in a repository's folder")?;
    let blobs = repo.join("blobs");
    let blob = blobs.join(sha256);
    let writing = |path: &Path| format!("cannot write {}", path.display());

    std::fs::create_dir_all(&blobs).with_context(|| writing(&blobs))?;
    std::fs::create_dir_all(snapshot).with_context(|| writing(snapshot))?;
    write_by_rename(&blob, &blobs, bytes).with_context(|| writing(&blob))?;
    if link_by_rename(&link, snapshot, sha256).is_err() {
        // A file system without links: `huggingface_hub` puts a copy there instead.
        write_by_rename(&link, snapshot, bytes).with_context(|| writing(&link))?;
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
