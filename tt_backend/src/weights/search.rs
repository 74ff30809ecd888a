//! Which weights file is used.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::Weights;
use crate::Error;

/// Repository of Magic Leap's weights on the Hugging Face hub.
pub const HUB_REPO: &str = "magic-leap-community/superpoint";
/// The commit of [`HUB_REPO`] that the product is made for.
pub const HUB_REVISION: &str = "734450e9ffe229074f5998494ddc615475cdb20a";
/// The weights file in [`HUB_REPO`].
pub const HUB_FILE: &str = "model.safetensors";

/// Says `bundled` as an explicit path. A file of that name is `./bundled`.
const BUNDLED_WORD: &str = "bundled";

/// Where the weights to be used are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// The file that the user named.
    Explicit(PathBuf),
    /// The pinned revision of [`HUB_REPO`] in the Hugging Face cache.
    HubCache(PathBuf),
    /// The weights that are part of the product.
    Bundled,
}

impl Location {
    /// The file, or `None` for the bundled weights.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Explicit(path) | Self::HubCache(path) => Some(path),
            Self::Bundled => None,
        }
    }

    /// Reads and checks the weights.
    ///
    /// # Errors
    ///
    /// Those of [`Weights::load`].
    pub fn load(&self) -> Result<Weights, Error> {
        self.path().map_or_else(Weights::bundled, Weights::load)
    }
}

/// The path, or `bundled`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => path.display().fmt(f),
            None => f.write_str(BUNDLED_WORD),
        }
    }
}

/// [`Weights::locate`] with the environment as an argument, so that tests need not change the process's own.
pub(super) fn locate(explicit: Option<&Path>, env: impl Fn(&str) -> Option<OsString>) -> Result<Location, Error> {
    if let Some(path) = explicit {
        return Ok(if path.as_os_str() == BUNDLED_WORD {
            Location::Bundled
        } else {
            Location::Explicit(path.to_path_buf())
        });
    }
    let Some(hub) = hub_cache_dir(env) else {
        return Ok(Location::Bundled);
    };
    let path = hub_snapshot_file(&hub);
    // Not `exists()`: a link whose blob is gone is a broken download, which the user should hear of.
    match path.symlink_metadata() {
        Ok(_) => Ok(Location::HubCache(path)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Location::Bundled)
        }
        Err(source) => Err(Error::WeightsRead { path, source }),
    }
}

/// The pinned weights file in a hub cache folder, as `huggingface_hub` lays it out, whether it is there or not.
pub fn hub_snapshot_file(hub_cache: &Path) -> PathBuf {
    let repo = format!("models--{}", HUB_REPO.replace('/', "--"));
    hub_cache.join(repo).join("snapshots").join(HUB_REVISION).join(HUB_FILE)
}

/// The folder in which `huggingface_hub` keeps repositories: `HF_HUB_CACHE`, else `HUGGINGFACE_HUB_CACHE`
/// (its old name), else `HF_HOME/hub`, else `XDG_CACHE_HOME/huggingface/hub`, else
/// `HOME/.cache/huggingface/hub`. An empty variable counts as unset. `None` when not even `HOME` is set.
pub fn hub_cache_dir(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let home = env("HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = |name: &str| {
        let value = env(name).filter(|value| !value.is_empty())?;
        Some(expand_home(Path::new(&value), home.as_deref()))
    };
    folder("HF_HUB_CACHE")
        .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| folder("HF_HOME").map(|path| path.join("hub")))
        .or_else(|| folder("XDG_CACHE_HOME").map(|path| path.join("huggingface").join("hub")))
        .or_else(|| home.as_ref().map(|path| path.join(".cache").join("huggingface").join("hub")))
}

/// A leading `~` in these variables means the home folder to `huggingface_hub`, also where no shell expanded it.
fn expand_home(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_path_buf(),
    }
}

/// Repository and revision of a file in a hub cache (`models--OWNER--NAME/snapshots/REVISION/FILE`), from its path.
pub(super) fn hub_origin(path: &Path) -> Option<(String, String)> {
    let mut upwards = path.components().rev().skip(1).map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let revision = upwards.next()??;
    if upwards.next()?? != "snapshots" {
        return None;
    }
    let repo = upwards.next()??.strip_prefix("models--")?;
    Some((repo.replacen("--", "/", 1), revision.to_owned()))
}
