//! From the network's maps to keypoints: suppression, threshold, border, the best k, descriptor sampling.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use multiversion::multiversion;

use crate::maps::Maps;
use crate::nms::Suppression;
use crate::params::{Params, Postprocess};
use crate::ranking::Ranking;
use crate::team::Team;
use crate::{Detections, Size};

/// Length of a descriptor.
pub const DESCRIPTOR_DIM: usize = 256;

/// Descriptors that a thread samples at a time.
const SAMPLED_TOGETHER: usize = 64;

/// Fewest rows that are worth a thread: those that the windows at its edges reach are looked at twice.
const LEAST_ROWS: usize = 64;

/// Takes keypoints out of maps. Keeps its scratch memory from frame to frame.
#[derive(Debug, Default)]
pub struct Extractor {
    /// One for each part of the rows.
    finders: Vec<Mutex<Finder>>,
    ranking: Ranking,
}

/// What it takes to look at a part of the rows.
#[derive(Debug, Default)]
struct Finder {
    suppression: Suppression,
    candidates: Ranking,
}

impl Extractor {
    /// Replaces the keypoints in `out` by those of `maps`.
    ///
    /// Order: score descending, ties by row, then column. Descriptors are sampled if `params` ask for them; the
    /// maps must then hold them.
    pub fn extract(&mut self, maps: &Maps, params: &Params, team: &mut Team, out: &mut Detections) {
        let size = maps.size;
        let rows = match params.postprocess {
            Postprocess::Package => size.height.div_ceil(team.size()).max(LEAST_ROWS),
            // Each of its passes needs the one before as a whole.
            Postprocess::Upstream => size.height,
        };
        let finders = self.finders(size.height.div_ceil(rows));
        team.run(finders.len(), &|_, number| {
            let mut finder = finders[number].lock().unwrap_or_else(PoisonError::into_inner);
            let Finder { suppression, candidates } = &mut *finder;
            let first = number * rows;
            find_candidates(suppression, maps, first..size.height.min(first + rows), params, candidates);
        });
        self.rank(maps.size, params, out);

        out.has_descriptors = params.return_descriptors;
        let descriptors = if params.return_descriptors { out.points.len() } else { 0 };
        out.descriptors.resize(descriptors * DESCRIPTOR_DIM, 0.0);
        team.for_chunks(&mut out.descriptors, SAMPLED_TOGETHER * DESCRIPTOR_DIM, |_, number, descriptors| {
            let points = &out.points[number * SAMPLED_TOGETHER..];
            sample_all(&maps.descriptors, size.cells(), points, descriptors);
        });
    }

    /// Replaces points and scores in `out` by those of the keypoints of `maps`, and leaves descriptors alone.
    pub(crate) fn find(&mut self, maps: &Maps, params: &Params, out: &mut Detections) {
        let finder = &mut self.finders(1)[0];
        let Finder { suppression, candidates } = finder.get_mut().unwrap_or_else(PoisonError::into_inner);
        find_candidates(suppression, maps, 0..maps.size.height, params, candidates);
        self.rank(maps.size, params, out);
    }

    /// So many, and none has found anything yet.
    fn finders(&mut self, count: usize) -> &mut [Mutex<Finder>] {
        self.finders.resize_with(count.max(self.finders.len()), Mutex::default);
        for finder in &mut self.finders {
            // After a panic there may be candidates of that frame.
            finder.get_mut().unwrap_or_else(PoisonError::into_inner).candidates.clear();
        }
        &mut self.finders[..count]
    }

    /// Replaces points and scores in `out` by the best of what was found.
    fn rank(&mut self, size: Size, params: &Params, out: &mut Detections) {
        self.ranking.clear();
        for finder in &mut self.finders {
            self.ranking.take(&mut finder.get_mut().unwrap_or_else(PoisonError::into_inner).candidates);
        }
        self.ranking.best(params.max_keypoints, size, out);
    }
}

/// Adds the pixels of `rows` that survive suppression, score above the threshold and lie inside the border.
#[multiversion(targets("x86_64+avx2"))]
fn find_candidates(
    suppression: &mut Suppression,
    maps: &Maps,
    rows: Range<usize>,
    params: &Params,
    candidates: &mut Ranking,
) {
    let (size, border) = (maps.size, params.border_removal_distance);
    // `transformers` measures the far borders from a frame eight times as large, so there they never apply.
    let (bottom, right) = match params.postprocess {
        Postprocess::Package => (size.height.saturating_sub(border), size.width.saturating_sub(border)),
        Postprocess::Upstream => (size.height, size.width),
    };
    let row = |y: usize, bars: &[f32]| {
        if (border..bottom).contains(&y) && border < right {
            let first = y * size.width + border;
            let scores = &maps.scores[first..][..right - border];
            find_in_row(scores, &bars[border..right], params.keypoint_threshold, first, candidates);
        }
    };
    match params.postprocess {
        Postprocess::Package => suppression.single_pass(&maps.scores, size, params.nms_radius, rows, row),
        Postprocess::Upstream => suppression.iterated(&maps.scores, size, params.nms_radius, row),
    }
}

/// Adds the pixels of a row whose score equals the bar and lies above the threshold; the first has index `first`.
#[inline(always)]
fn find_in_row(scores: &[f32], bars: &[f32], threshold: f32, first: usize, candidates: &mut Ranking) {
    const STEP: usize = 32;
    let found = |score: f32, bar: f32| (score == bar) & (score > threshold);
    for (step, (scores, bars)) in scores.chunks(STEP).zip(bars.chunks(STEP)).enumerate() {
        // Few steps have any: looked at as a whole, in vectors, they cost nothing.
        if scores.iter().zip(bars).fold(false, |any, (&score, &bar)| any | found(score, bar)) {
            for (offset, (&score, &bar)) in scores.iter().zip(bars).enumerate() {
                if found(score, bar) {
                    candidates.push(score, first + step * STEP + offset);
                }
            }
        }
    }
}

/// Where a pixel lies on the map of `cells` cells along one axis.
///
/// Source: `SuperPointDescriptorDecoder._sample_descriptors` of `transformers`, `(x - 3.5) / (8 n - 4.5) * (n - 1)`;
/// not quite the cells' centres, but the network is used with it everywhere.
fn map_position(pixel: u16, cells: usize) -> f32 {
    let cells = cells as f32;
    (f32::from(pixel) - 3.5) / (8.0 * cells - 4.5) * (cells - 1.0)
}

/// Writes the descriptors of the first points, as many as there is room for.
#[multiversion(targets("x86_64+avx2"))]
fn sample_all(map: &[f32], cells: Size, points: &[[u16; 2]], descriptors: &mut [f32]) {
    for (descriptor, &point) in descriptors.as_chunks_mut().0.iter_mut().zip(points) {
        *descriptor = sample(map, cells, point);
    }
}

/// The four cells that a pixel lies between on the map of `cells` cells, row-major, and their weights for a bilinear
/// sample; a weight is 0 outside the map.
#[inline(always)]
pub(crate) fn corners(cells: Size, [x, y]: [u16; 2]) -> [(f32, usize); 4] {
    let (u, v) = (map_position(x, cells.width), map_position(y, cells.height));
    let (column, row) = (u.floor(), v.floor());
    let (right, below) = (u - column, v - row);
    let (rows, columns) = ([(row, 1.0 - below), (row + 1.0, below)], [(column, 1.0 - right), (column + 1.0, right)]);
    std::array::from_fn(|corner| {
        let ((row, row_weight), (column, column_weight)) = (rows[corner / 2], columns[corner % 2]);
        let inside = row >= 0.0 && column >= 0.0 && row < cells.height as f32 && column < cells.width as f32;
        // Outside, any cell will do: it counts for nothing.
        let cell = if inside { row as usize * cells.width + column as usize } else { 0 };
        (if inside { row_weight * column_weight } else { 0.0 }, cell)
    })
}

/// Bilinear sample of the descriptor map at a pixel, zero outside the map, then divided by its L2 norm.
///
/// `map` is `cells.height x cells.width x 256`, channel last.
#[inline(always)]
fn sample(map: &[f32], cells: Size, point: [u16; 2]) -> [f32; DESCRIPTOR_DIM] {
    let corners = corners(cells, point).map(|(weight, cell)| (weight, &map[cell * DESCRIPTOR_DIM..][..DESCRIPTOR_DIM]));
    let mut descriptor: [f32; DESCRIPTOR_DIM] =
        std::array::from_fn(|channel| corners.iter().fold(0.0, |sum, (weight, cell)| sum + weight * cell[channel]));
    // Eight sums side by side, so that the compiler may use vectors: addition of floats has an order.
    let mut squares = [0.0f32; 8];
    for eight in descriptor.as_chunks::<8>().0 {
        for (sum, &value) in squares.iter_mut().zip(eight) {
            *sum += value * value;
        }
    }
    // The epsilon of `torch.nn.functional.normalize`: a zero vector stays zero.
    let norm = squares.iter().sum::<f32>().sqrt().max(1e-12);
    descriptor.iter_mut().for_each(|value| *value /= norm);
    descriptor
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extract(maps: &Maps, params: &Params) -> Detections {
        let mut out = Detections::default();
        Extractor::default().extract(maps, params, &mut Team::new(2).unwrap(), &mut out);
        out
    }

    fn without_descriptors() -> Params {
        Params { return_descriptors: false, ..Params::default() }
    }

    /// Score maps of a few cells with few distinct values, so that ties are common.
    fn maps() -> impl Strategy<Value = Maps> {
        (2usize..6, 2usize..6).prop_flat_map(|(rows, columns)| {
            let size = Size::new(8 * rows, 8 * columns);
            proptest::collection::vec((0u8..20).prop_map(|v| f32::from(v) / 20.0), size.area()).prop_map(
                move |scores| {
                    let mut maps = Maps::new(size);
                    maps.scores = scores;
                    maps
                },
            )
        })
    }

    /// The contract's sentence, read literally, with a full sort.
    fn by_definition(maps: &Maps, params: &Params) -> Vec<([u16; 2], f32)> {
        let (size, radius) = (maps.size, params.nms_radius as isize);
        let border = params.border_removal_distance;
        let at = |y: isize, x: isize| {
            let inside = y >= 0 && x >= 0 && y < size.height as isize && x < size.width as isize;
            if inside { maps.scores[y as usize * size.width + x as usize] } else { f32::NEG_INFINITY }
        };
        let mut found = Vec::new();
        for y in 0..size.height {
            for x in 0..size.width {
                let score = at(y as isize, x as isize);
                let mut maximum = f32::NEG_INFINITY;
                for dy in -radius..=radius {
                    for dx in -radius..=radius {
                        maximum = maximum.max(at(y as isize + dy, x as isize + dx));
                    }
                }
                let near_border = y < border || x < border || y + border >= size.height || x + border >= size.width;
                if score == maximum && score > params.keypoint_threshold && !near_border {
                    found.push(([x as u16, y as u16], score));
                }
            }
        }
        // Stable, so that ties stay in row-major order.
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found.truncate(params.max_keypoints.unwrap_or(usize::MAX));
        found
    }

    proptest! {
        #[test]
        fn package_mode_is_its_definition(
            maps in maps(),
            nms_radius in 0usize..6,
            border in 0usize..9,
            count in proptest::option::of(0usize..40),
            threshold in 0.0f32..1.0,
        ) {
            let params = Params {
                nms_radius,
                border_removal_distance: border,
                max_keypoints: count,
                keypoint_threshold: threshold,
                ..without_descriptors()
            };
            let found = extract(&maps, &params);
            let found: Vec<_> = found.points.into_iter().zip(found.scores).collect();
            prop_assert_eq!(found, by_definition(&maps, &params));
        }

        #[test]
        fn fewer_keypoints_are_a_prefix_of_more(maps in maps(), few in 0usize..20, more in 20usize..80) {
            let take = |count| extract(&maps, &Params { max_keypoints: Some(count), ..without_descriptors() });
            let (few, more) = (take(few), take(more));
            prop_assert_eq!(&few.points[..], &more.points[..few.len()]);
        }
    }

    #[test]
    fn threads_find_what_one_would() {
        let size = Size::new(4 * LEAST_ROWS - 8, 40);
        let mut maps = Maps::new(size);
        // Few distinct values, so that there are ties where the threads' rows meet.
        maps.scores = (0..size.area() as u64).map(|index| (index * index * 7919 % 23) as f32 / 23.0).collect();
        for (threads, nms_radius) in (1..7).flat_map(|threads| [0, 1, 4, 90].map(|radius| (threads, radius))) {
            let params = Params { nms_radius, keypoint_threshold: 0.5, max_keypoints: None, ..without_descriptors() };
            let (mut extractor, mut team) = (Extractor::default(), Team::new(threads).unwrap());
            let mut out = Detections::default();
            for _ in 0..2 {
                extractor.extract(&maps, &params, &mut team, &mut out);
                let found: Vec<_> = out.points.iter().copied().zip(out.scores.iter().copied()).collect();
                assert!(found == by_definition(&maps, &params), "{threads} threads, radius {nms_radius}");
                assert!(!found.is_empty());
            }
            extractor.find(&maps, &params, &mut out);
            assert_eq!(out.len(), by_definition(&maps, &params).len());
        }
    }

    #[test]
    fn upstream_mode_keeps_the_far_borders() {
        let size = Size::new(32, 32);
        let mut maps = Maps::new(size);
        for (x, y) in [(1, 16), (16, 1), (30, 16), (16, 30)] {
            maps.scores[y * size.width + x] = 0.5;
        }
        let params = |postprocess| Params { postprocess, ..without_descriptors() };
        assert!(extract(&maps, &params(Postprocess::Package)).is_empty());
        assert_eq!(extract(&maps, &params(Postprocess::Upstream)).points, [[30, 16], [16, 30]]);
    }

    #[test]
    fn no_keypoints_is_an_answer() {
        let maps = Maps { descriptors: vec![1.0; 16 * 256], ..Maps::new(Size::new(32, 32)) };
        for postprocess in [Postprocess::Package, Postprocess::Upstream] {
            let found = extract(&maps, &Params { postprocess, ..Params::default() });
            assert!(found.is_empty());
            assert_eq!(found.descriptors().map(|d| d.dim()), Some((0, 256)));
        }
    }

    #[test]
    fn an_all_equal_map_keeps_every_pixel_inside_the_border() {
        let maps = Maps { scores: vec![0.25; 32 * 40], ..Maps::new(Size::new(32, 40)) };
        let found = extract(&maps, &Params { max_keypoints: None, ..without_descriptors() });
        assert_eq!(found.len(), 24 * 32);
        assert_eq!(found.points[..2], [[4, 4], [5, 4]]);
        assert!(found.descriptors().is_none());
    }

    #[test]
    fn a_border_wider_than_the_frame_leaves_nothing() {
        for size in [Size::new(32, 40), Size::new(512, 40), Size::new(32, 512)] {
            let maps = Maps { scores: vec![0.25; size.height * size.width], ..Maps::new(size) };
            for postprocess in [Postprocess::Package, Postprocess::Upstream] {
                let params = Params { border_removal_distance: 240, postprocess, ..without_descriptors() };
                assert!(extract(&maps, &params).is_empty(), "{size}");
            }
        }
    }

    /// A map whose first two channels are a cell's column and row, plus one so that they are not zero.
    fn ramp(cells: Size) -> Vec<f32> {
        (0..cells.area())
            .flat_map(|cell| {
                let mut descriptor = [0.0; DESCRIPTOR_DIM];
                descriptor[0] = (cell % cells.width) as f32 + 1.0;
                descriptor[1] = (cell / cells.width) as f32 + 1.0;
                descriptor
            })
            .collect()
    }

    #[test]
    fn samples_where_transformers_samples() {
        let cells = Size::NETWORK.cells();
        let map = ramp(cells);
        for point in [[4u16, 4u16], [100, 7], [639, 479], [320, 240]] {
            let descriptor = sample(&map, cells, point);
            // Inside the map a bilinear sample of a ramp is the ramp: u + 1 over v + 1.
            let u = (f64::from(point[0]) - 3.5) / (8.0 * 80.0 - 4.5) * 79.0;
            let v = (f64::from(point[1]) - 3.5) / (8.0 * 60.0 - 4.5) * 59.0;
            let ratio = f64::from(descriptor[0]) / f64::from(descriptor[1]);
            let expected = (u + 1.0) / (v + 1.0);
            assert!((ratio / expected - 1.0).abs() < 1e-5, "{point:?}: {ratio} for {expected}");
            // Half a pixel elsewhere is told apart.
            let shifted = ((u + 0.5 / 8.0) + 1.0) / (v + 1.0);
            assert!((ratio / shifted - 1.0).abs() > 1e-4, "{point:?}");
        }
    }

    #[test]
    fn outside_the_map_counts_as_zero_and_norms_are_one() {
        let cells = Size::new(3, 4);
        let map = ramp(cells);
        for x in 0..32 {
            for y in 0..24 {
                let descriptor = sample(&map, cells, [x, y]);
                let norm: f32 = descriptor.iter().map(|v| v * v).sum::<f32>().sqrt();
                assert!((norm - 1.0).abs() < 1e-6, "({x}, {y}): {norm}");
            }
        }
        // Left of the first column only that column is left: its direction, whatever the weight.
        let descriptor = sample(&map, cells, [0, 0]);
        assert!((descriptor[0] - descriptor[1]).abs() < 1e-6 && descriptor[0] > 0.7);
        // A map of zeros stays zero rather than becoming NaN.
        let descriptor = sample(&vec![0.0; map.len()], cells, [9, 9]);
        assert!(descriptor.iter().all(|&v| v == 0.0));
    }
}
