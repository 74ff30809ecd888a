//! Where on the image keypoints are wanted: a robot's own body, or the black rim of a fisheye, is masked out.

use std::fs;
use std::path::Path;

use tt_backend::Size;

use crate::decode;

/// A picture of any size that covers the whole image; its zero pixels drop keypoints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mask {
    size: Size,
    keeps: Vec<bool>,
}

impl Mask {
    /// Reads a PNG or JPEG file.
    ///
    /// # Errors
    ///
    /// A sentence that names the file.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("mask {}: {error}", path.display());
        // A pipe or a device would be read for ever.
        if !fs::metadata(path).map_err(|error| failed(&error))?.is_file() {
            return Err(failed(&"it is not a file"));
        }
        let file = fs::read(path).map_err(|error| failed(&error))?;
        let picture = decode::picture(&file).map_err(|error| failed(&error))?;
        let size = Size::new(picture.height() as usize, picture.width() as usize);
        if size.height == 0 || size.width == 0 {
            return Err(failed(&"it has no pixels"));
        }
        // Sixteen bits, so that the darkest colours are not rounded to black.
        Ok(Self { size, keeps: picture.into_luma16().into_raw().into_iter().map(|value| value != 0).collect() })
    }

    /// Whether a keypoint of a network frame stays.
    pub(super) fn keeps(&self, [x, y]: [u16; 2], network: Size) -> bool {
        // Both cover the same area; of the mask, the pixel that the keypoint's centre lies in counts.
        let at = |position: u16, side: usize, of: usize| (2 * usize::from(position) + 1) * side / (2 * of.max(1));
        let row = at(y, self.size.height, network.height).min(self.size.height - 1);
        let column = at(x, self.size.width, network.width).min(self.size.width - 1);
        self.keeps[row * self.size.width + column]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use image::{GrayImage, Luma, Rgb, RgbImage};

    use super::*;

    #[test]
    fn zero_pixels_drop_and_the_mask_is_stretched_over_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        GrayImage::from_fn(4, 2, |x, y| Luma([u8::from(x >= 2 || y == 1)])).save(&path).unwrap();
        let mask = Mask::load(&path).unwrap();
        let network = Size::new(480, 640);
        for (point, kept) in
            [([0, 0], false), ([319, 239], false), ([320, 239], true), ([319, 240], true), ([639, 479], true)]
        {
            assert_eq!(mask.keeps(point, network), kept, "{point:?}");
        }
    }

    #[test]
    fn the_darkest_colour_is_not_zero() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        RgbImage::from_pixel(1, 1, Rgb([0, 0, 1])).save(&path).unwrap();
        assert!(Mask::load(&path).unwrap().keeps([5, 5], Size::new(480, 640)));
    }

    #[test]
    fn a_file_that_is_no_picture_is_named() {
        let error = Mask::load(Path::new("/nonexistent/mask.png")).unwrap_err();
        assert!(error.contains("/nonexistent/mask.png"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        fs::write(&path, "no picture").unwrap();
        assert!(Mask::load(&path).unwrap_err().contains("mask.png"));
        assert!(Mask::load(folder.path()).unwrap_err().contains("not a file"));
        assert!(Mask::load(Path::new("/dev/zero")).unwrap_err().contains("not a file"));
    }
}
