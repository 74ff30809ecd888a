//! Non-maximum suppression on the score map.

use crate::Size;

/// Finds the pixels that survive suppression. Keeps its scratch memory from frame to frame.
#[derive(Debug, Default)]
pub struct Suppression {
    window: WindowMax,
    /// Window maxima of the scores.
    maxima: Vec<f32>,
    /// 1 where a pixel survives, 0 elsewhere; a map of floats because its window maximum is taken too.
    mask: Vec<f32>,
    /// Window maxima of the mask: above 0 near survivors.
    near: Vec<f32>,
    /// Scores with everything near survivors set to 0.
    remaining: Vec<f32>,
}

/// Which pixels survived.
#[derive(Clone, Copy, Debug)]
pub enum Survivors<'a> {
    /// Those whose score equals the maximum of their window, given here.
    AtMaximum(&'a [f32]),
    /// Those with a 1 here.
    Marked(&'a [f32]),
}

impl Survivors<'_> {
    /// Whether the pixel at `index`, of score `score`, survived.
    #[inline]
    pub fn survives(&self, index: usize, score: f32) -> bool {
        match self {
            Self::AtMaximum(maxima) => score == maxima[index],
            Self::Marked(mask) => mask[index] > 0.0,
        }
    }
}

impl Suppression {
    /// One pass: a pixel survives if its score equals the maximum of the `(2 * radius + 1)`-wide square around
    /// it, cut at the edges. All of several equal maxima survive.
    pub fn single_pass(&mut self, scores: &[f32], size: Size, radius: usize) -> Survivors<'_> {
        self.window.run(scores, size, radius, &mut self.maxima);
        Survivors::AtMaximum(&self.maxima)
    }

    /// The single pass and two more, in which everything near a survivor counts as 0, so that maxima come back
    /// which only a suppressed pixel had kept down.
    ///
    /// Source: `simple_nms` of `transformers` (and of Magic Leap's SuperGlue before it).
    pub fn iterated(&mut self, scores: &[f32], size: Size, radius: usize) -> Survivors<'_> {
        let Self { window, maxima, mask, near, remaining } = self;
        window.run(scores, size, radius, maxima);
        let mark = |survives: bool| if survives { 1.0f32 } else { 0.0 };
        mask.clear();
        mask.extend(scores.iter().zip(&*maxima).map(|(score, maximum)| mark(score == maximum)));
        for _ in 0..2 {
            window.run(mask, size, radius, near);
            remaining.clear();
            remaining.extend(scores.iter().zip(&*near).map(|(&score, &near)| if near > 0.0 { 0.0 } else { score }));
            window.run(remaining, size, radius, maxima);
            for (index, mask) in mask.iter_mut().enumerate() {
                if near[index] <= 0.0 && remaining[index] == maxima[index] {
                    *mask = 1.0;
                }
            }
        }
        Survivors::Marked(mask)
    }
}

/// Maximum over a square window, as a maximum along rows and then one along columns.
#[derive(Debug, Default)]
struct WindowMax {
    /// Row maxima of the whole map.
    rows: Vec<f32>,
    /// One row with `radius` values on either side that never win.
    padded: Vec<f32>,
}

impl WindowMax {
    fn run(&mut self, map: &[f32], size: Size, radius: usize, out: &mut Vec<f32>) {
        let width = size.width;
        self.rows.clear();
        self.rows.extend_from_slice(map);
        self.padded.clear();
        self.padded.resize(width + 2 * radius, f32::NEG_INFINITY);
        for row in self.rows.chunks_exact_mut(width) {
            self.padded[radius..radius + width].copy_from_slice(row);
            for shift in 0..=2 * radius {
                raise(row, &self.padded[shift..]);
            }
        }

        out.clear();
        out.extend_from_slice(&self.rows);
        for (y, row) in out.chunks_exact_mut(width).enumerate() {
            let first = y.saturating_sub(radius);
            let end = (y + radius + 1).min(size.height);
            for near in self.rows[first * width..end * width].chunks_exact(width) {
                raise(row, near);
            }
        }
    }
}

/// `row = max(row, other)`, element by element.
#[inline(always)]
fn raise(row: &mut [f32], other: &[f32]) {
    for (value, &other) in row.iter_mut().zip(other) {
        // Not `f32::max`: its care for NaN keeps it from being one instruction, and scores have none.
        *value = if other > *value { other } else { *value };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, pixel by pixel.
    fn window_max(map: &[f32], size: Size, radius: usize) -> Vec<f32> {
        let at = |y: usize, x: usize| map[y * size.width + x];
        (0..size.area())
            .map(|index| {
                let (y, x) = (index / size.width, index % size.width);
                let rows = y.saturating_sub(radius)..=(y + radius).min(size.height - 1);
                let columns = x.saturating_sub(radius)..=(x + radius).min(size.width - 1);
                rows.flat_map(|y| columns.clone().map(move |x| at(y, x))).fold(f32::NEG_INFINITY, f32::max)
            })
            .collect()
    }

    /// `simple_nms`, line by line.
    fn simple_nms(scores: &[f32], size: Size, radius: usize) -> Vec<bool> {
        let equal = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a == b).collect::<Vec<_>>();
        let mut mask = equal(scores, &window_max(scores, size, radius));
        for _ in 0..2 {
            let floats: Vec<f32> = mask.iter().map(|&m| f32::from(u8::from(m))).collect();
            let near: Vec<bool> = window_max(&floats, size, radius).iter().map(|&m| m > 0.0).collect();
            let rest: Vec<f32> = scores.iter().zip(&near).map(|(&s, &near)| if near { 0.0 } else { s }).collect();
            let new = equal(&rest, &window_max(&rest, size, radius));
            for index in 0..mask.len() {
                mask[index] |= new[index] && !near[index];
            }
        }
        mask
    }

    /// Maps of few distinct values, so that ties are common.
    fn maps() -> impl Strategy<Value = (Size, Vec<f32>)> {
        (1usize..24, 1usize..24).prop_flat_map(|(height, width)| {
            let values = proptest::collection::vec((0u8..12).prop_map(|v| f32::from(v) / 16.0), height * width);
            (Just(Size::new(height, width)), values)
        })
    }

    proptest! {
        #[test]
        fn single_pass_is_the_definition((size, scores) in maps(), radius in 0usize..10) {
            let maxima = window_max(&scores, size, radius);
            let mut suppression = Suppression::default();
            let survivors = suppression.single_pass(&scores, size, radius);
            for (index, &score) in scores.iter().enumerate() {
                prop_assert_eq!(survivors.survives(index, score), score == maxima[index]);
            }
        }

        #[test]
        fn iterated_is_simple_nms((size, scores) in maps(), radius in 0usize..10) {
            let expected = simple_nms(&scores, size, radius);
            let mut suppression = Suppression::default();
            let survivors = suppression.iterated(&scores, size, radius);
            for (index, &score) in scores.iter().enumerate() {
                prop_assert_eq!(survivors.survives(index, score), expected[index]);
            }
        }
    }

    #[test]
    fn all_of_a_plateau_survive() {
        let scores = [0.5; 12];
        let mut suppression = Suppression::default();
        for radius in [0, 1, 32] {
            let survivors = suppression.single_pass(&scores, Size::new(3, 4), radius);
            assert!((0..12).all(|index| survivors.survives(index, 0.5)), "radius {radius}");
        }
    }
}
