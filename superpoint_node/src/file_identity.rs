//! Which paths lead to one file.

use std::os::unix::fs::MetadataExt as _;
use std::path::{self, Path, PathBuf};

/// A file, whatever it is called: writing to one of two paths with the same identity writes over the other.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileIdentity {
    /// One that is there: its device and its number, which all its names share.
    There(u64, u64),
    /// One that is not there yet: where it would be made.
    Absent(PathBuf),
}

impl FileIdentity {
    pub(crate) fn of(file: &Path) -> Self {
        if let Ok(about) = file.metadata() {
            return Self::There(about.dev(), about.ino());
        }
        let absolute = path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let folder = absolute.parent().and_then(|folder| folder.canonicalize().ok());
        Self::Absent(match (folder, absolute.file_name()) {
            (Some(folder), Some(name)) => folder.join(name),
            _ => absolute,
        })
    }

    /// Whether there is something that could be lost.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self, Self::There(..))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn names_of_one_file_are_known_whether_it_is_there_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| FileIdentity::of(&folder.path().join(name));
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        symlink(at("real"), at("other")).unwrap();
        assert_eq!(of("real/new"), of("other/new"), "not there yet");
        assert_eq!(of("none/new"), of("none/new"), "nor its folder");
        assert_ne!(of("real/new"), of("real/newer"));
        std::fs::write(at("real/file"), "").unwrap();
        std::fs::write(at("real/twin"), "").unwrap();
        std::fs::hard_link(at("real/file"), at("hard")).unwrap();
        symlink(at("real/file"), at("soft")).unwrap();
        for name in ["other/file", "hard", "soft", "real/../real/file"] {
            assert_eq!(of("real/file"), of(name), "{name}");
        }
        assert_ne!(of("real/file"), of("real/twin"));
        assert_ne!(of("real/file"), of("real/new"));
    }
}
