//! Over how many consecutive images a keypoint is followed.

use super::pair::Pairing;

/// Follows keypoints from image to image through matches that fit the camera's motion.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    /// In how many images each keypoint of the newest image has been seen, that one included.
    current: Vec<u32>,
    /// How many tracks of each length have ended; the first is of length 1.
    ended: Vec<u64>,
}

impl Tracks {
    /// Goes on to an image with `count` keypoints; without a pairing all tracks end.
    pub(super) fn add(&mut self, pairing: Option<&Pairing>, count: usize) {
        let before = std::mem::replace(&mut self.current, vec![1; count]);
        let mut goes_on = vec![false; before.len()];
        for [first, second] in pairing.iter().flat_map(|pairing| pairing.inliers.iter().map(|&at| pairing.indices[at]))
        {
            self.current[second] = before[first] + 1;
            goes_on[first] = true;
        }
        before.iter().zip(goes_on).filter(|(_, goes_on)| !goes_on).for_each(|(&length, _)| self.end(length));
    }

    fn end(&mut self, length: u32) {
        let index = length as usize - 1;
        if index >= self.ended.len() {
            self.ended.resize(index + 1, 0);
        }
        self.ended[index] += 1;
    }

    /// How many tracks of each length there were; the first is of length 1. Those of the last image end with it.
    pub(super) fn finish(mut self) -> Vec<u64> {
        for length in std::mem::take(&mut self.current) {
            self.end(length);
        }
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairing(indices: &[[usize; 2]], inliers: &[usize]) -> Pairing {
        Pairing {
            indices: indices.to_vec(),
            pairs: Vec::new(),
            inliers: inliers.to_vec(),
            plane_inliers: Vec::new(),
            plane: None,
        }
    }

    #[test]
    fn a_track_goes_on_only_through_inliers() {
        let mut tracks = Tracks::default();
        tracks.add(None, 3);
        tracks.add(Some(&pairing(&[[0, 1], [1, 0], [2, 2]], &[0, 1])), 3); // the third match is wrong
        tracks.add(Some(&pairing(&[[1, 0]], &[0])), 1);
        // One of length 3; one of 2, which ended; alone stayed the third of the first image and that of the second.
        assert_eq!(tracks.finish(), [2, 1, 1]);
        let mut interrupted = Tracks::default();
        interrupted.add(None, 2);
        interrupted.add(None, 0);
        interrupted.add(None, 1);
        assert_eq!(interrupted.finish(), [3]);
    }
}
