//! Where a keypoint lies in the image that was sent, in the way of ROS: pixel centres at integers.

use tt_backend::{Detections, Size};

/// From the network's pixel grid to the image's, both with pixel centres at integers.
///
/// Both grids cover the same area, so it is the pixels' corners that scale: the centre of the first network pixel,
/// half a pixel in, is half a network pixel in also in the image.
pub(crate) struct PixelCentres {
    scale_x: f32,
    scale_y: f32,
}

impl PixelCentres {
    /// From the frame that the detections are in to the image that they were found in.
    pub(crate) fn of(found: &Detections) -> Self {
        Self::between(found.network, found.original)
    }

    fn between(network: Size, image: Size) -> Self {
        Self {
            scale_x: image.width as f32 / network.width as f32,
            scale_y: image.height as f32 / network.height as f32,
        }
    }

    pub(crate) fn map(&self, [x, y]: [u16; 2]) -> [f32; 2] {
        [(f32::from(x) + 0.5) * self.scale_x - 0.5, (f32::from(y) + 0.5) * self.scale_y - 0.5]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grids_share_their_corners_not_their_first_centres() {
        // 640 columns over 1600: a network pixel spans 2.5 image pixels, its centre is 1.25 from their left edge.
        let map = PixelCentres::between(Size::new(480, 640), Size::new(900, 1600));
        assert_eq!(map.map([0, 0]), [0.75, 0.4375]);
        assert_eq!(map.map([639, 479]), [1598.25, 898.5625]);
        let same = PixelCentres::between(Size::new(480, 640), Size::new(480, 640));
        assert_eq!(same.map([17, 400]), [17.0, 400.0]);
    }
}
