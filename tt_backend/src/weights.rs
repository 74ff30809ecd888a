//! The network's weights: where they are looked for, how they are read, and what is checked.
//!
//! Only safetensors files are read. Pickles (`.pth`, `.bin`) can run code when they are opened and are
//! refused by their first bytes, whatever their name.

mod load;
mod search;

use std::path::{Path, PathBuf};

use ndarray::{Array1, Array4};

pub use load::{MAX_FILE_BYTES, TensorSummary, summarize, summarize_bundled};
pub use search::{HUB_FILE, HUB_REPO, HUB_REVISION, Location, hub_cache_dir, hub_snapshot_file};

use crate::Error;

/// One convolution with its bias.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Kernel, `[out, in, kh, kw]`, as a cross-correlation (PyTorch's `Conv2d`).
    pub weight: Array4<f32>,
    /// Added to every position of an output channel, `[out]`.
    pub bias: Array1<f32>,
}

/// Where weights came from; every output of the product names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// `magic-leap-community/superpoint` for the file from the Hugging Face cache, else the name that the
    /// file's own metadata gives (`superpoint_open` for the bundled weights), else the file's stem.
    pub name: String,
    /// Revision in the hub's repository, or the one that the file's metadata gives.
    pub revision: Option<String>,
    /// SHA-256 of the whole file, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// The file; `None` for the weights that are bundled with the product.
    pub path: Option<PathBuf>,
}

/// All weights of SuperPoint, in f32 whatever the file's number format.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The shared encoder, 3x3: 1→64, 64→64, 64→64, 64→64, 64→128, 128→128, 128→128, 128→128 channels.
    /// A 2x2 max pooling follows the second, the fourth and the sixth.
    pub encoder: [Conv; 8],
    /// The detector head: 3x3 128→256, then 1x1 256→65.
    pub score: [Conv; 2],
    /// The descriptor head: 3x3 128→256, then 1x1 256→256.
    pub descriptor: [Conv; 2],
    /// Where these weights came from.
    pub provenance: Provenance,
}

/// The file that is part of the product.
const BUNDLED: &[u8] = include_bytes!("../../weights/superpoint_open.safetensors");
/// How errors name it.
const BUNDLED_ORIGIN: &str = "bundled with this build";

impl Weights {
    /// Reads and checks the safetensors file at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::WeightsRead`] when the file cannot be read, is not a regular file or is larger than
    /// [`MAX_FILE_BYTES`]; [`Error::Weights`] when its content is not SuperPoint's.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let bytes = load::read_bounded(path)?;
        let mut weights = Self::from_bytes(&bytes, &path.display().to_string())?;
        weights.provenance.path = Some(path.to_path_buf());
        if let Some((name, revision)) = search::hub_origin(path) {
            weights.provenance.name = name;
            weights.provenance.revision = Some(revision);
        } else if weights.provenance.name.is_empty() {
            weights.provenance.name =
                path.file_stem().map_or_else(|| "unnamed".to_owned(), |stem| stem.to_string_lossy().into_owned());
        }
        Ok(weights)
    }

    /// The weights that are part of the product, `superpoint_open`.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] when the product was built with a broken file.
    pub fn bundled() -> Result<Self, Error> {
        Self::from_bytes(BUNDLED, BUNDLED_ORIGIN)
    }

    /// Reads and checks the bytes of a safetensors file. `origin` names them in errors.
    ///
    /// The provenance has the name and revision of the file's metadata (an empty name if it has none) and
    /// no path.
    ///
    /// # Errors
    ///
    /// [`Error::Weights`] says which tensor is wrong, what was found and what was expected.
    pub fn from_bytes(bytes: &[u8], origin: &str) -> Result<Self, Error> {
        load::parse(bytes).map_err(|reason| Error::Weights { origin: origin.to_owned(), reason })
    }

    /// Which weights would be used: `explicit` if given (the word `bundled` means the bundled ones), else
    /// the file of [`HUB_REPO`] at [`HUB_REVISION`] if it is in the Hugging Face cache, else the bundled
    /// ones. Nothing is read yet; [`Location::load`] does that.
    ///
    /// A broken file in the cache is found here and refused by [`Location::load`]: falling back to other
    /// weights without a word would change every keypoint.
    ///
    /// # Errors
    ///
    /// [`Error::WeightsRead`] when the cache cannot be looked into.
    pub fn locate(explicit: Option<&Path>) -> Result<Location, Error> {
        search::locate(explicit, |name| std::env::var_os(name))
    }

    /// [`Weights::locate`], then [`Location::load`].
    ///
    /// # Errors
    ///
    /// Those of [`Weights::load`].
    pub fn find(explicit: Option<&Path>) -> Result<Self, Error> {
        Self::locate(explicit)?.load()
    }
}
