//! Which keypoints of two pictures are the same point: mutual nearest neighbours of descriptors.

use multiversion::multiversion;
use ndarray::ArrayView2;
use tt_backend::Detections;

/// Two keypoints whose descriptors are each other's nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match {
    /// Index in the first picture's keypoints.
    pub first: usize,
    /// Index in the second picture's keypoints.
    pub second: usize,
    /// Cosine of the angle between the descriptors, at most 1.
    pub similarity: f32,
}

/// Mutual nearest neighbours, in the first picture's order. Of equally near ones the first counts.
///
/// Both must have descriptors; without, there are no matches.
pub fn mutual_nearest(first: &Detections, second: &Detections) -> Vec<Match> {
    let (Some(a), Some(b)) = (first.descriptors(), second.descriptors()) else { return Vec::new() };
    // Rows have unit length, so the nearest is the one with the largest product.
    let similarities = a.dot(&b.t());
    let (there, back) = highest(similarities.view());
    let pairs = there.into_iter().enumerate();
    let mutual = pairs.filter(|&(first, second)| back.get(second as usize) == Some(&(first as u32)));
    mutual
        .map(|(first, second)| {
            let second = second as usize;
            Match { first, second, similarity: similarities[[first, second]] }
        })
        .collect()
}

/// Columns that are looked at together.
const LANES: usize = 16;

/// Where each row and each column has its highest value. Every value is looked at once, in the order of memory and many at
/// a time: value by value it takes three times as long, nearly half as long as the product itself.
#[multiversion(targets("x86_64+avx2"))]
fn highest(table: ArrayView2<'_, f32>) -> (Vec<u32>, Vec<u32>) {
    let mut rows = Vec::with_capacity(table.nrows());
    let mut columns = vec![0; table.ncols()];
    let mut highest = vec![f32::NEG_INFINITY; table.ncols()];
    for (index, row) in (0..).zip(table.outer_iter()) {
        let Some(row) = row.to_slice() else { continue };
        for ((&value, highest), column) in row.iter().zip(&mut highest).zip(&mut columns) {
            let higher = value > *highest;
            *highest = if higher { value } else { *highest };
            *column = if higher { index } else { *column };
        }
        let (chunks, rest) = row.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane = if value > *lane { value } else { *lane };
            }
        }
        let highest = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        rows.push(row.iter().position(|&value| value == highest).unwrap_or(0) as u32);
    }
    (rows, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_of_each_row_and_column_and_of_equal_ones_the_first() {
        // More columns than lanes, and some left over.
        let table = ndarray::Array2::from_shape_fn((5, 37), |(row, column)| ((row * 7 + column * 5) % 11) as f32 - 5.0);
        let (rows, columns) = highest(table.view());
        let first = |line: ndarray::ArrayView1<'_, f32>| {
            let highest = line.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            line.iter().position(|&value| value == highest).expect("there is one") as u32
        };
        assert_eq!(rows, table.rows().into_iter().map(first).collect::<Vec<_>>());
        assert_eq!(columns, table.columns().into_iter().map(first).collect::<Vec<_>>());
    }
}
