//! From the survivors that the device lists to keypoints: equal neighbours, threshold, border, the best k.

use half::bf16;

use super::suppress::PER_COLUMN;
use crate::ranking::Ranking;
use crate::{Params, Size};

/// Adds the keypoints among the survivors to `ranking`. `scores` and `rows` are `width x 64`, the best of each column of the
/// frame, 0 where there are fewer; `reached` is memory.
///
/// The device compared scores that were rounded to bf16: of survivors within the radius of each other only the one with the
/// highest score stays, all if they are equal in fp32 too. Only survivors are compared: a pixel that another one suppressed
/// suppresses in its turn where suppression compares fp32, and here not if only fp32 tells it from this one. That is up
/// to nine keypoints in a thousand.
///
/// Returns whether the list is complete. It is not when the last of a column may reach the threshold: there may be more, and
/// which of several equal ones the device left out is open.
pub(super) fn rank(
    scores: &[f32],
    rows: &[u16],
    frame: Size,
    params: &Params,
    reached: &mut Vec<usize>,
    ranking: &mut Ranking,
) -> bool {
    let (threshold, radius) = (params.keypoint_threshold, params.nms_radius);
    let (border, round) = (params.border_removal_distance, |score: f32| bf16::from_f32(score));
    let inside = |position: usize, side: usize| position >= border && position + border < side;
    // Survivors of each column that may be above the threshold; in the list's order, which is that of bf16.
    let reaches = |score: &&f32| **score > 0.0 && round(**score) >= round(threshold);
    reached.clear();
    reached.extend(scores.chunks_exact(PER_COLUMN).map(|column| column.iter().take_while(reaches).count()));
    let column = |x: usize| {
        let column = x * PER_COLUMN..x * PER_COLUMN + reached[x];
        scores[column.clone()].iter().copied().zip(rows[column].iter().map(|&row| usize::from(row)))
    };

    ranking.clear();
    for x in (0..frame.width).filter(|&x| inside(x, frame.width)) {
        for (score, y) in column(x).filter(|&(score, y)| score > threshold && inside(y, frame.height)) {
            let mut near = (x.saturating_sub(radius)..frame.width.min(x + radius + 1)).flat_map(column);
            if !near.any(|(other, row)| other > score && row.abs_diff(y) <= radius) {
                ranking.push(score, y * frame.width + x);
            }
        }
    }
    reached.iter().all(|&count| count < PER_COLUMN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Detections;

    fn column(survivors: &[(f32, u16)]) -> (Vec<f32>, Vec<u16>) {
        let mut survivors = survivors.to_vec();
        survivors.resize(PER_COLUMN, (0.0, 0));
        survivors.into_iter().unzip()
    }

    fn points(columns: &[(Vec<f32>, Vec<u16>)], frame: Size, params: &Params) -> Option<(Vec<[u16; 2]>, Vec<f32>)> {
        let (mut ranking, mut out) = (Ranking::default(), Detections::default());
        let (scores, rows): (Vec<_>, Vec<_>) = columns.iter().cloned().unzip();
        let complete = rank(&scores.concat(), &rows.concat(), frame, params, &mut Vec::new(), &mut ranking);
        ranking.best(None, frame, &mut out);
        complete.then_some((out.points, out.scores))
    }

    #[test]
    fn equal_scores_come_by_row_and_column_and_the_border_is_empty() {
        // The device's order of equal scores is open: here the larger row comes first.
        let one = column(&[(0.75, 9), (0.5, 27), (0.5, 28), (0.5, 4), (0.5, 3), (0.25, 14)]);
        let params = Params { keypoint_threshold: 0.25, ..Params::default() };
        let (points, scores) = points(&vec![one; 12], Size::new(32, 12), &params).unwrap();
        let expected: Vec<_> = [9, 4, 27].into_iter().flat_map(|y| (4..8).map(move |x| [x, y])).collect();
        assert_eq!(points, expected);
        assert_eq!(scores[3..5], [0.75, 0.5]);
    }

    #[test]
    fn of_neighbours_that_are_equal_in_bf16_the_higher_stays() {
        let (low, high) = (0.5, 0.500_1);
        assert_eq!(bf16::from_f32(low), bf16::from_f32(high));
        let nothing = || column(&[]);
        let mut columns: Vec<_> = std::iter::repeat_with(nothing).take(24).collect();
        columns[6] = column(&[(low, 10), (low, 20)]);
        // Within 4 pixels of the first, 5 rows from the second.
        columns[10] = column(&[(high, 14), (low, 6)]);
        columns[11] = column(&[(high, 25)]);
        // And the other way round: 4 pixels to the left of the second, and above it.
        columns[15] = column(&[(high, 20)]);
        columns[19] = column(&[(low, 24)]);
        let params = Params { keypoint_threshold: 0.25, ..Params::default() };
        let (points, _) = points(&columns, Size::new(32, 24), &params).unwrap();
        assert_eq!(points, [[10, 14], [15, 20], [11, 25], [10, 6], [6, 20]]);
    }

    #[test]
    fn a_threshold_is_compared_with_the_score_in_fp32() {
        let threshold = 0.500_1;
        let scores = [0.500_2, 0.500_1, 0.5];
        assert!(scores.iter().all(|&score| bf16::from_f32(score) == bf16::from_f32(threshold)));
        let one = column(&[(scores[2], 6), (scores[0], 16), (scores[1], 26)]);
        let params = Params { keypoint_threshold: threshold, nms_radius: 1, ..Params::default() };
        let (points, _) = points(&vec![one; 9], Size::new(32, 9), &params).unwrap();
        assert_eq!(points, [[4, 16]]);
    }

    #[test]
    fn a_full_column_is_not_trusted() {
        let frame = Size::new(640, 12);
        let full: Vec<_> = (0..PER_COLUMN as u16).map(|row| (0.5, 8 * row)).collect();
        let columns = vec![column(&full); 12];
        let above = |keypoint_threshold| Params { keypoint_threshold, ..Params::default() };
        assert_eq!(points(&columns, frame, &above(0.25)), None);
        let (none, _) = points(&columns, frame, &above(0.51)).unwrap();
        assert!(none.is_empty(), "none is above");
        // One fewer is all there are.
        let columns = vec![column(&full[1..]); 12];
        assert_eq!(points(&columns, frame, &above(0.25)).unwrap().0.len(), 4 * (PER_COLUMN - 1));
        // Not even if it is full in the border only: its pixels may be neighbours of others.
        let mut columns = vec![column(&full[1..]); 12];
        columns[0] = column(&full);
        assert_eq!(points(&columns, frame, &above(0.25)), None);
    }
}
