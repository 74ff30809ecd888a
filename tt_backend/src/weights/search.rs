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
        Err(reason) => Err(Error::WeightsRead { path, reason }),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment of these variables.
    fn env<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
    }

    #[test]
    fn the_cache_is_where_huggingface_hub_has_it() {
        let all = [
            ("HF_HUB_CACHE", "/a"),
            ("HUGGINGFACE_HUB_CACHE", "/b"),
            ("HF_HOME", "/c"),
            ("XDG_CACHE_HOME", "/d"),
            ("HOME", "/e"),
        ];
        for (from, expected) in
            ["/a", "/b", "/c/hub", "/d/huggingface/hub", "/e/.cache/huggingface/hub"].iter().enumerate()
        {
            assert_eq!(hub_cache_dir(env(&all[from..])).as_deref(), Some(Path::new(expected)));
        }
        assert_eq!(hub_cache_dir(env(&[])), None);
    }

    #[test]
    fn empty_variables_count_as_unset_and_a_tilde_is_home() {
        let variables = [("HF_HUB_CACHE", ""), ("HF_HOME", "~/models"), ("HOME", "/e")];
        assert_eq!(hub_cache_dir(env(&variables)).as_deref(), Some(Path::new("/e/models/hub")));
        assert_eq!(hub_cache_dir(env(&[("HOME", "")])), None);
        // `~name` is another user's home, which is not looked up.
        assert_eq!(hub_cache_dir(env(&[("HF_HOME", "~x"), ("HOME", "/e")])).as_deref(), Some(Path::new("~x/hub")));
    }

    #[test]
    fn without_a_file_in_the_cache_the_bundled_weights_are_used() {
        for variables in [&[][..], &[("HOME", "/nowhere")], &[("HF_HOME", "/dev/null")]] {
            assert_eq!(locate(None, env(variables)).expect("not an error"), Location::Bundled);
        }
    }

    #[test]
    fn a_file_in_the_cache_is_used_even_if_broken() {
        let cache = tempfile::tempdir().expect("a temporary folder");
        let path = hub_snapshot_file(cache.path());
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("writable");
        let text = cache.path().display().to_string();
        let find = || locate(None, env(&[("HF_HUB_CACHE", &text)])).expect("not an error");
        assert_eq!(find(), Location::Bundled);

        std::fs::write(&path, b"broken").expect("writable");
        assert_eq!(find(), Location::HubCache(path.clone()));
        let error = find().load().expect_err("broken").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");

        #[cfg(unix)]
        {
            std::fs::remove_file(&path).expect("there");
            std::os::unix::fs::symlink("../../blobs/gone", &path).expect("writable");
            let error = find().load().expect_err("its blob is gone").to_string();
            assert!(error.contains("link to ../../blobs/gone"), "{error}");
        }
    }

    #[test]
    fn the_path_in_a_cache_tells_repository_and_revision() {
        let origin = |path: &str| hub_origin(Path::new(path));
        let expected = Some((HUB_REPO.to_owned(), HUB_REVISION.to_owned()));
        assert_eq!(hub_origin(&hub_snapshot_file(Path::new("/cache"))), expected);
        for other in
            ["model.safetensors", "/", "", "..", "/a/snapshots/b/model.safetensors", "snapshots/b/model.safetensors"]
        {
            assert_eq!(origin(other), None, "{other}");
        }
    }
}
