//! The order of keypoints: score, then row, then column.

use crate::{Detections, Size};

/// Candidates for keypoints. Keeps its memory from frame to frame.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    /// Each as one number: its score's bits above its position, inverted. For scores, which are not negative, the order
    /// of the numbers is the order of keypoints: score first, then the smaller row, then the smaller column.
    candidates: Vec<u64>,
}

impl Ranking {
    pub(crate) fn clear(&mut self) {
        self.candidates.clear();
    }

    /// Adds the pixel with number `index`, row-major.
    #[inline(always)]
    pub(crate) fn push(&mut self, score: f32, index: usize) {
        self.candidates.push((u64::from(score.to_bits()) << 32) | u64::from(!(index as u32)));
    }

    /// Takes the candidates of `other`, which is left without any.
    pub(crate) fn take(&mut self, other: &mut Self) {
        self.candidates.append(&mut other.candidates);
    }

    /// Replaces points and scores in `out` by the best `count` candidates, all if `None`, of a frame of `size`.
    pub(crate) fn best(&mut self, count: Option<usize>, size: Size, out: &mut Detections) {
        if let Some(count) = count
            && count < self.candidates.len()
        {
            if count > 0 {
                self.candidates.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
            }
            self.candidates.truncate(count);
        }
        self.candidates.sort_unstable_by(|a, b| b.cmp(a));

        out.points.clear();
        out.scores.clear();
        for &candidate in &self.candidates {
            let index = !(candidate as u32) as usize;
            // Network sides are at most 4096.
            out.points.push([(index % size.width) as u16, (index / size.width) as u16]);
            out.scores.push(f32::from_bits((candidate >> 32) as u32));
        }
    }
}
