//! From the survivors that the device lists to keypoints: threshold, border, the best k.

use half::bf16;

use super::suppress::PER_COLUMN;
use crate::ranking::Ranking;
use crate::{Params, Size};

/// Adds the survivors above the threshold and inside the border to `ranking`. `scores` (bf16, as bits) and `rows` are
/// `width x 64`, the best of each column of the frame.
///
/// Returns whether these are all. They are not when even the last of a column is above the threshold: there may be more,
/// and which of several equal ones the device left out is open.
pub(super) fn rank(scores: &[u16], rows: &[u16], frame: Size, params: &Params, ranking: &mut Ranking) -> bool {
    let border = params.border_removal_distance;
    let inside = |position: usize, side: usize| position >= border && position + border < side;
    ranking.clear();
    for (x, (scores, rows)) in scores.chunks_exact(PER_COLUMN).zip(rows.chunks_exact(PER_COLUMN)).enumerate() {
        if !inside(x, frame.width) {
            continue;
        }
        let above = scores
            .iter()
            .map(|&bits| bf16::from_bits(bits).to_f32())
            .take_while(|&score| score > params.keypoint_threshold)
            .zip(rows);
        let mut count = 0;
        for (score, &row) in above {
            count += 1;
            if inside(row.into(), frame.height) {
                ranking.push(score, usize::from(row) * frame.width + x);
            }
        }
        if count == PER_COLUMN {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Detections;

    fn column(survivors: &[(f32, u16)]) -> (Vec<u16>, Vec<u16>) {
        let mut survivors = survivors.to_vec();
        survivors.resize(PER_COLUMN, (0.0, 0));
        survivors.into_iter().map(|(score, row)| (bf16::from_f32(score).to_bits(), row)).unzip()
    }

    #[test]
    fn equal_scores_come_by_row_and_column_and_the_border_is_empty() {
        let frame = Size::new(32, 12);
        let params = Params { keypoint_threshold: 0.25, ..Params::default() };
        let (mut scores, mut rows) = (Vec::new(), Vec::new());
        for _ in 0..12 {
            // The device's order of equal scores is open: here the larger row comes first.
            let column = column(&[(0.75, 9), (0.5, 27), (0.5, 28), (0.5, 4), (0.5, 3), (0.25, 10)]);
            scores.extend(column.0);
            rows.extend(column.1);
        }
        let (mut ranking, mut out) = (Ranking::default(), Detections::default());
        assert!(rank(&scores, &rows, frame, &params, &mut ranking));
        ranking.best(None, frame, &mut out);
        let points: Vec<_> = [9, 4, 27].into_iter().flat_map(|y| (4..8).map(move |x| [x, y])).collect();
        assert_eq!(out.points, points);
        assert_eq!(out.scores[3..5], [0.75, 0.5]);
    }

    #[test]
    fn a_full_column_is_not_trusted() {
        let frame = Size::new(640, 12);
        let full: Vec<_> = (0..PER_COLUMN as u16).map(|row| (0.5, 8 * row)).collect();
        let (scores, rows): (Vec<_>, Vec<_>) = (0..12).map(|_| column(&full)).unzip();
        let (scores, rows) = (scores.concat(), rows.concat());
        let mut ranking = Ranking::default();
        let above = |keypoint_threshold| Params { keypoint_threshold, ..Params::default() };
        assert!(!rank(&scores, &rows, frame, &above(0.25), &mut ranking));
        assert!(rank(&scores, &rows, frame, &above(0.5), &mut ranking), "none is above");
    }
}
