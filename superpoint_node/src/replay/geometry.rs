//! What two images of one scene have in common: homographies, epipolar geometry, and RANSAC for both.
//!
//! Own code because no maintained crate has it: `arrsac` and `homography` have rested since 2022. The formulae are those
//! of Hartley and Zisserman, "Multiple View Geometry in Computer Vision", 2nd edition (H&Z below), and Fischler and
//! Bolles, "Random Sample Consensus", 1981.

use nalgebra::{Matrix3, SMatrix, SymmetricEigen, Vector3};

/// A point, `[x, y]` in pixels.
pub(crate) type Point = [f64; 2];

/// A point in the first image, and where it is in the second.
pub(crate) type Pair = (Point, Point);

/// A plane's image as seen from one camera and from another: maps points of the first image to the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Homography(Matrix3<f64>);

impl Homography {
    /// Every point where it is.
    pub(crate) fn identity() -> Self {
        Self(Matrix3::identity())
    }

    /// Row by row.
    pub(crate) fn from_rows(rows: [[f64; 3]; 3]) -> Self {
        Self(Matrix3::from_fn(|row, column| rows[row][column]))
    }

    /// Row by row, the last value 1 where that is possible.
    pub(crate) fn rows(&self) -> [[f64; 3]; 3] {
        let scale = if self.0[(2, 2)].abs() > f64::EPSILON { self.0[(2, 2)] } else { 1.0 };
        std::array::from_fn(|row| std::array::from_fn(|column| self.0[(row, column)] / scale))
    }

    /// `x * scale + shift` along each axis.
    pub(crate) fn scaling(scale: Point, shift: Point) -> Self {
        Self::from_rows([[scale[0], 0.0, shift[0]], [0.0, scale[1], shift[1]], [0.0, 0.0, 1.0]])
    }

    /// First this, then `next`.
    pub(crate) fn then(&self, next: &Self) -> Self {
        Self(next.0 * self.0)
    }

    /// From the second image to the first; `None` if points were lost on the way.
    pub(crate) fn inverse(&self) -> Option<Self> {
        self.0.try_inverse().filter(|inverse| inverse.iter().all(|value| value.is_finite())).map(Self)
    }

    /// Where a point is in the second image; infinite behind its horizon.
    pub(crate) fn map(&self, [x, y]: Point) -> Point {
        let mapped = self.0 * Vector3::new(x, y, 1.0);
        if mapped.z.abs() < f64::EPSILON {
            return [f64::INFINITY; 2];
        }
        [mapped.x / mapped.z, mapped.y / mapped.z]
    }

    /// The homography that fits at least four pairs best: the normalised direct linear transformation, H&Z 4.1 and 4.4.
    pub(crate) fn fit(pairs: &[Pair]) -> Option<Self> {
        Self::fit_weighted(pairs, &vec![1.0; pairs.len()])
    }

    fn fit_weighted(pairs: &[Pair], weights: &[f64]) -> Option<Self> {
        let Solution { normalised, from, to } =
            Solution::of(pairs, weights, |[u, v]| [[0.0, -1.0, v], [1.0, 0.0, -u]])?;
        let fitted = to.inverse() * normalised * from.matrix();
        (fitted.determinant().abs() > 1e-12 * fitted.norm().powi(3)).then_some(Self(fitted))
    }

    /// From about the motion of most pairs to that motion.
    ///
    /// Fitted again and again to the pairs weighted by how well they fit, with Tukey's biweight (Beaton and Tukey, 1974), it
    /// follows those that agree and not those that happen to be near. Pairs count up to `reach` pixels from it, at first
    /// three times as far, so that it settles where most are.
    pub(crate) fn settled(mut self, pairs: &[Pair], reach: f64) -> Option<Self> {
        const ROUNDS: u32 = 20;
        for round in 0..ROUNDS {
            let reach = reach * (3.0 - 0.25 * f64::from(round)).max(1.0);
            let weight = |pair| (1.0 - self.squared_error(pair) / (reach * reach)).max(0.0).powi(2);
            let weights: Vec<f64> = pairs.iter().map(weight).collect();
            self = Self::fit_weighted(pairs, &weights)?;
        }
        Some(self)
    }

    /// Squared distance in the second image, in pixels.
    pub(crate) fn squared_error(&self, &(first, second): &Pair) -> f64 {
        squared_distance(self.map(first), second)
    }
}

/// Two images of one rigid scene from a camera that moved: a point of the first lies on a line of the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Fundamental(Matrix3<f64>);

impl Fundamental {
    /// The fundamental matrix that fits at least eight pairs best: the normalised 8-point algorithm, H&Z 11.2.
    pub(crate) fn fit(pairs: &[Pair]) -> Option<Self> {
        let Solution { normalised, from, to } = Solution::of(pairs, &vec![1.0; pairs.len()], |[u, v]| [[u, v, 1.0]])?;
        // All epipolar lines meet in one point: the smallest singular value is set to 0.
        let mut parts = normalised.svd(true, true);
        let (smallest, _) = parts.singular_values.argmin();
        parts.singular_values[smallest] = 0.0;
        let normalised = parts.recompose().ok()?;
        Some(Self(to.matrix().transpose() * normalised * from.matrix()))
    }

    /// Sampson's distance, squared, in pixels: to first order how far both points are from fitting. H&Z 11.4.3.
    pub(crate) fn squared_error(&self, &([x, y], [u, v]): &Pair) -> f64 {
        let (first, second) = (Vector3::new(x, y, 1.0), Vector3::new(u, v, 1.0));
        let (line, back) = (self.0 * first, self.0.transpose() * second);
        let residual = second.dot(&line);
        let gradient = line.x.powi(2) + line.y.powi(2) + back.x.powi(2) + back.y.powi(2);
        if gradient > 0.0 { residual * residual / gradient } else { f64::INFINITY }
    }
}

/// Moves points so that their centre is 0 and their mean distance from it is the square root of 2. H&Z 4.4.4.
struct Normalisation {
    scale: f64,
    centre: Point,
}

impl Normalisation {
    fn of(points: impl ExactSizeIterator<Item = Point> + Clone) -> Option<Self> {
        let count = points.len() as f64;
        let sum = points.clone().fold([0.0; 2], |[sx, sy], [x, y]| [sx + x, sy + y]);
        let centre = sum.map(|value| value / count);
        let mean = points.map(|point| squared_distance(point, centre).sqrt()).sum::<f64>() / count;
        let scale = std::f64::consts::SQRT_2 / mean;
        scale.is_finite().then_some(Self { scale, centre })
    }

    fn apply(&self, [x, y]: Point) -> Point {
        [(x - self.centre[0]) * self.scale, (y - self.centre[1]) * self.scale]
    }

    fn matrix(&self) -> Matrix3<f64> {
        let Self { scale, centre: [x, y] } = *self;
        Matrix3::new(scale, 0.0, -scale * x, 0.0, scale, -scale * y, 0.0, 0.0, 1.0)
    }

    fn inverse(&self) -> Matrix3<f64> {
        let Self { scale, centre: [x, y] } = *self;
        Matrix3::new(1.0 / scale, 0.0, x, 0.0, 1.0 / scale, y, 0.0, 0.0, 1.0)
    }
}

/// The matrix that fulfils the equations of all pairs best.
struct Solution {
    /// For points as the normalisations give them.
    normalised: Matrix3<f64>,
    from: Normalisation,
    to: Normalisation,
}

impl Solution {
    /// A pair of normalised points `p` and `q`, `[x, y, 1]` each, gives the equations `c^T M p = 0` for the `c` that
    /// `equations` makes of `q`. `M`, row by row, is the unit vector with the least error: an eigenvector of the weighted
    /// sum of all `a a^T`, where `a` is the Kronecker product of `c` and `p`.
    fn of<const N: usize>(pairs: &[Pair], weights: &[f64], equations: impl Fn(Point) -> [[f64; 3]; N]) -> Option<Self> {
        let from = Normalisation::of(pairs.iter().map(|pair| pair.0))?;
        let to = Normalisation::of(pairs.iter().map(|pair| pair.1))?;
        // `a a^T` is the Kronecker product of `c c^T` and `p p^T`, both symmetric: 36 of its 81 values are different.
        let mut sums = [[0.0; 6]; 6];
        for (&(first, second), &weight) in pairs.iter().zip(weights) {
            let [x, y] = from.apply(first);
            let products = products([x, y, 1.0]);
            let equations = equations(to.apply(second)).map(self::products);
            for (index, sums) in sums.iter_mut().enumerate() {
                let factor = weight * equations.iter().map(|products| products[index]).sum::<f64>();
                sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += factor * product);
            }
        }
        let sum = SMatrix::<f64, 9, 9>::from_fn(|row, column| {
            sums[PRODUCT[row / 3][column / 3]][PRODUCT[row % 3][column % 3]]
        });
        let eigen = SymmetricEigen::try_new(sum, f64::EPSILON, 200)?;
        let (smallest, _) = eigen.eigenvalues.argmin();
        let normalised = Matrix3::from_row_slice(eigen.eigenvectors.column(smallest).as_slice());
        Some(Self { normalised, from, to })
    }
}

/// The different values of `v v^T`.
fn products([x, y, z]: [f64; 3]) -> [f64; 6] {
    [x * x, x * y, x * z, y * y, y * z, z * z]
}

/// Where they are: row and column of `v v^T` to the index among [`products`].
const PRODUCT: [[usize; 3]; 3] = [[0, 1, 2], [1, 3, 4], [2, 4, 5]];

pub(crate) fn squared_distance([x, y]: Point, [u, v]: Point) -> f64 {
    (x - u).powi(2) + (y - v).powi(2)
}

/// A model with the pairs that it fits.
#[derive(Debug)]
pub(crate) struct Consensus<M> {
    pub(crate) model: M,
    /// Indices of the pairs that fit, ascending.
    pub(crate) inliers: Vec<usize>,
}

/// The homography of the plane that most pairs lie on; a pair fits within `threshold` pixels.
pub(crate) fn ransac_homography(pairs: &[Pair], threshold: f64) -> Option<Consensus<Homography>> {
    ransac::<4, _>(pairs, threshold, Homography::fit, Homography::squared_error)
}

/// The epipolar geometry that most pairs agree with, within `threshold` pixels.
pub(crate) fn ransac_fundamental(pairs: &[Pair], threshold: f64) -> Option<Consensus<Fundamental>> {
    ransac::<8, _>(pairs, threshold, Fundamental::fit, Fundamental::squared_error)
}

/// Probability that at least one sample is free of wrong pairs, with which sampling may end.
const CONFIDENCE: f64 = 0.999;
const MAX_SAMPLES: usize = 500;
/// Fits to all inliers, after which they hardly change any more.
const MAX_REFITS: usize = 10;

/// The same pairs give the same answer: the random numbers always start alike.
fn ransac<const N: usize, M>(
    pairs: &[Pair],
    threshold: f64,
    fit: impl Fn(&[Pair]) -> Option<M>,
    squared_error: impl Fn(&M, &Pair) -> f64,
) -> Option<Consensus<M>> {
    if pairs.len() < N {
        return None;
    }
    let consensus = |model: M| {
        let fits = |&index: &usize| squared_error(&model, &pairs[index]) <= threshold * threshold;
        Consensus { inliers: (0..pairs.len()).filter(fits).collect(), model }
    };
    let mut best: Option<Consensus<M>> = None;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut sampled, mut wanted) = (0, MAX_SAMPLES);
    while sampled < wanted {
        sampled += 1;
        let sample: [Pair; N] = random.distinct(pairs.len()).map(|index| pairs[index]);
        let Some(found) = fit(&sample).map(consensus) else { continue };
        if found.inliers.len() > best.as_ref().map_or(N - 1, |best| best.inliers.len()) {
            let ratio = found.inliers.len() as f64 / pairs.len() as f64;
            let needed = (1.0 - CONFIDENCE).ln() / (1.0 - ratio.powi(N as i32)).max(f64::MIN_POSITIVE).ln();
            wanted = wanted.min(needed.ceil().max(1.0) as usize);
            best = Some(found);
        }
    }
    let mut best = best?;
    for _ in 0..MAX_REFITS {
        let chosen: Vec<Pair> = best.inliers.iter().map(|&index| pairs[index]).collect();
        let Some(found) = fit(&chosen).map(consensus) else { break };
        if found.inliers.len() < best.inliers.len() {
            break;
        }
        let settled = found.inliers == best.inliers;
        best = found;
        if settled {
            break;
        }
    }
    Some(best)
}

/// xorshift64, Marsaglia 2003.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * limit as u128) >> 64) as usize
    }

    /// `N` different numbers below `limit`, which is at least `N`.
    fn distinct<const N: usize>(&mut self, limit: usize) -> [usize; N] {
        let mut drawn = [0; N];
        for place in 0..N {
            // Floyd's sampling, so that it ends also when N is all there is.
            let candidate = self.below(limit - N + place + 1);
            drawn[place] = if drawn[..place].contains(&candidate) { limit - N + place } else { candidate };
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn points(count: usize) -> impl Iterator<Item = Point> {
        let mut random = Random(7);
        std::iter::repeat_with(move || [random.below(640) as f64, random.below(480) as f64]).take(count)
    }

    fn close(a: Point, b: Point, tolerance: f64) -> bool {
        squared_distance(a, b) <= tolerance * tolerance
    }

    const WARP: [[f64; 3]; 3] = [[0.9, 0.1, 12.0], [-0.15, 1.1, -7.0], [2e-4, -1e-4, 1.0]];

    #[test]
    fn a_homography_comes_back_from_its_pairs() {
        let warp = Homography::from_rows(WARP);
        let inverse = warp.inverse().unwrap();
        for count in [4, 5, 200] {
            let pairs: Vec<Pair> = points(count).map(|point| (point, warp.map(point))).collect();
            let fitted = Homography::fit(&pairs).unwrap();
            for point in points(50) {
                assert!(close(fitted.map(point), warp.map(point), 1e-4), "{count} pairs");
                assert!(close(inverse.map(warp.map(point)), point, 1e-9));
            }
        }
    }

    #[test]
    fn wrong_pairs_are_left_out() {
        let warp = Homography::from_rows(WARP);
        let mut random = Random(99);
        let pairs: Vec<Pair> = points(300)
            .enumerate()
            .map(|(index, point)| match index % 3 {
                0 => (point, [random.below(640) as f64, random.below(480) as f64]),
                _ => (point, warp.map(point).map(f64::round)),
            })
            .collect();
        let found = ransac_homography(&pairs, 3.0).unwrap();
        let right = found.inliers.iter().filter(|&index| index % 3 != 0).count();
        assert_eq!(right, 200);
        assert!(found.inliers.len() < 203, "{} inliers", found.inliers.len());
        for point in points(50) {
            assert!(close(found.model.map(point), warp.map(point), 0.3));
        }
    }

    #[test]
    fn the_motion_of_most_is_not_moved_by_those_that_fit_less_well() {
        // Of five keypoints three keep their place on the plane; the others lie up to three pixels to one side of it.
        let pairs: Vec<Pair> = points(400)
            .enumerate()
            .map(|(index, [x, y])| {
                let aside = if index % 5 < 3 { 0.0 } else { (index % 7) as f64 / 2.0 };
                ([x, y], [x - 3.0 + aside, y + 2.0])
            })
            .collect();
        let found = ransac_homography(&pairs, 3.0).unwrap();
        let settled = found.model.settled(&pairs, 1.5).unwrap();
        // Their mean is off by 0.6.
        for [x, y] in points(20) {
            assert!(close(settled.map([x, y]), [x - 3.0, y + 2.0], 0.2));
        }
    }

    #[test]
    fn epipolar_geometry_holds_for_points_at_all_depths() {
        // Two cameras with the same directions, the second one moved; depths from 4 to 20.
        let project = |[x, y]: Point, depth: f64, camera: [f64; 3]| {
            let world = [(x - 320.0) / 500.0 * depth, (y - 240.0) / 500.0 * depth, depth];
            let [dx, dy, dz] = [world[0] - camera[0], world[1] - camera[1], world[2] - camera[2]];
            [500.0 * dx / dz + 320.0, 500.0 * dy / dz + 240.0]
        };
        let mut random = Random(5);
        let pairs: Vec<Pair> = points(300)
            .enumerate()
            .map(|(index, point)| {
                let depth = 4.0 + random.below(1600) as f64 / 100.0;
                let second = project(point, depth, [0.4, 0.1, 0.3]);
                if index % 4 == 0 { (point, [second[0] + 30.0, second[1] - 40.0]) } else { (point, second) }
            })
            .collect();
        let found = ransac_fundamental(&pairs, 1.0).unwrap();
        assert_eq!(found.inliers.iter().filter(|&index| index % 4 != 0).count(), 225);
        assert!(found.inliers.len() < 240, "{} inliers", found.inliers.len());
        // No plane fits them.
        assert!(ransac_homography(&pairs, 3.0).unwrap().inliers.len() < 200);
    }

    #[test]
    fn all_epipolar_lines_meet_in_one_point() {
        let mut random = Random(3);
        let pairs: Vec<Pair> =
            points(40).map(|[x, y]| ([x, y], [x + random.below(90) as f64, y + random.below(3) as f64])).collect();
        let Fundamental(fitted) = Fundamental::fit(&pairs).unwrap();
        assert!(fitted.determinant().abs() < 1e-12 * fitted.norm().powi(3), "{fitted}");
    }

    #[test]
    fn sampsons_distance_is_shared_by_both_images() {
        // A camera that moves to the side: points stay in their row. Two pixels off it, each image's point is one off.
        let aside = Fundamental(Matrix3::new(0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 1.0, 0.0));
        assert_eq!(aside.squared_error(&([10.0, 20.0], [300.0, 20.0])), 0.0);
        assert_eq!(aside.squared_error(&([10.0, 20.0], [300.0, 22.0])), 2.0);
    }

    #[test]
    fn a_scene_at_rest_fits_both() {
        let pairs: Vec<Pair> = points(100).map(|point| (point, point)).collect();
        assert_eq!(ransac_homography(&pairs, 1.0).unwrap().inliers.len(), 100);
        assert_eq!(ransac_fundamental(&pairs, 1.0).unwrap().inliers.len(), 100);
    }

    #[test]
    fn too_few_or_useless_pairs_give_nothing() {
        let line: Vec<Pair> = (0..20).map(|step| ([f64::from(step), 5.0], [f64::from(step), 9.0])).collect();
        assert!(ransac_homography(&line[..3], 3.0).is_none());
        assert!(ransac_fundamental(&line[..7], 3.0).is_none());
        let same = [([3.0, 4.0], [5.0, 6.0]); 9];
        assert!(ransac_homography(&same, 3.0).is_none());
        assert!(ransac_fundamental(&same, 3.0).is_none());
        let _ = ransac_homography(&line, 3.0); // anything but a panic
    }

    #[test]
    fn samples_are_of_different_pairs() {
        let mut random = Random(1);
        for limit in 4..30 {
            for _ in 0..100 {
                let mut drawn: [usize; 4] = random.distinct(limit);
                drawn.sort_unstable();
                assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]) && drawn[3] < limit, "{drawn:?}");
            }
        }
    }
}
