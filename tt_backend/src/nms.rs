//! Non-maximum suppression on the score map.

use std::ops::Range;

use crate::Size;

/// Finds the pixels that survive suppression. Keeps its scratch memory from frame to frame.
///
/// Survivors are told row by row, from the top, as the score that each pixel of the row must equal to survive.
#[derive(Debug, Default)]
pub struct Suppression {
    window: WindowMax,
    /// 1 where a pixel survives, 0 elsewhere; a map of floats because its window maximum is taken too.
    mask: Vec<f32>,
    /// Scores, with -1 for everything near survivors.
    remaining: Vec<f32>,
}

impl Suppression {
    /// One pass: a pixel survives if its score equals the maximum of the `(2 * radius + 1)`-wide square around
    /// it, cut at the edges. All of several equal maxima survive. Only `rows` are told of.
    #[inline(always)]
    pub fn single_pass(
        &mut self,
        scores: &[f32],
        size: Size,
        radius: usize,
        rows: Range<usize>,
        row: impl FnMut(usize, &[f32]),
    ) {
        self.window.run(scores, size, radius, rows, row);
    }

    /// The single pass and two more, in which everything near a survivor counts for nothing, so that maxima come back
    /// which only a suppressed pixel had kept down.
    ///
    /// Source: `simple_nms` of `transformers` (and of Magic Leap's SuperGlue before it).
    #[inline(always)]
    pub fn iterated(&mut self, scores: &[f32], size: Size, radius: usize, mut row: impl FnMut(usize, &[f32])) {
        let Self { window, mask, remaining } = self;
        let columns = |y: usize| y * size.width..(y + 1) * size.width;
        let rows = || 0..size.height;
        mask.resize(size.area(), 0.0);
        remaining.resize(size.area(), 0.0);
        window.run(scores, size, radius, rows(), |y, maxima| {
            for ((mask, score), maximum) in mask[columns(y)].iter_mut().zip(&scores[columns(y)]).zip(maxima) {
                *mask = if score == maximum { 1.0 } else { 0.0 };
            }
        });
        for _ in 0..2 {
            window.run(mask, size, radius, rows(), |y, near| {
                for ((rest, &score), &near) in remaining[columns(y)].iter_mut().zip(&scores[columns(y)]).zip(near) {
                    *rest = if near > 0.0 { -1.0 } else { score };
                }
            });
            window.run(remaining, size, radius, rows(), |y, maxima| {
                for ((mask, &rest), &maximum) in mask[columns(y)].iter_mut().zip(&remaining[columns(y)]).zip(maxima) {
                    *mask = if rest == maximum && rest >= 0.0 { 1.0 } else { *mask };
                }
            });
        }
        for y in rows() {
            // A score never equals infinity.
            for (bar, &score) in mask[columns(y)].iter_mut().zip(&scores[columns(y)]) {
                *bar = if *bar > 0.0 { score } else { f32::INFINITY };
            }
            row(y, &mask[columns(y)]);
        }
    }
}

/// Values taken at once: a few vectors, so that a window's maximum grows in registers.
const LANES: usize = 32;
type Lanes = [f32; LANES];

/// Maximum over a square window, as a maximum along rows and then one along columns.
#[derive(Debug, Default)]
struct WindowMax {
    /// One row with values on either side that never win: `radius` before it, and after it at least as many.
    padded: Vec<f32>,
    /// Maxima along the rows of the last `2 * radius + 1` rows, each in the place of its number modulo that.
    near: Vec<Vec<Lanes>>,
    /// Maxima of one row.
    maxima: Vec<Lanes>,
}

impl WindowMax {
    /// Calls `each` with the number of each of `rows` and its maxima.
    #[inline(always)]
    fn run(&mut self, map: &[f32], size: Size, radius: usize, rows: Range<usize>, mut each: impl FnMut(usize, &[f32])) {
        let Self { padded, near, maxima } = self;
        let (width, window) = (size.width, 2 * radius + 1);
        maxima.resize(width.div_ceil(LANES), [0.0; LANES]);
        near.resize_with(window.max(near.len()), Vec::new);
        near.iter_mut().for_each(|row| row.resize(maxima.len(), [0.0; LANES]));
        padded.clear();
        padded.resize(maxima.len() * LANES + 2 * radius, f32::NEG_INFINITY);

        let mut done = rows.start.saturating_sub(radius);
        for y in rows {
            let (first, last) = (y.saturating_sub(radius), (y + radius).min(size.height - 1));
            while done <= last {
                padded[radius..][..width].copy_from_slice(&map[done * width..][..width]);
                for (step, maximum) in near[done % window].iter_mut().enumerate() {
                    let lanes =
                        |shift| padded[step * LANES + shift..].first_chunk().unwrap_or(&[f32::NEG_INFINITY; LANES]);
                    *maximum = (1..window).fold(*lanes(0), |maximum, shift| larger(maximum, lanes(shift)));
                }
                done += 1;
            }
            for (step, maximum) in maxima.iter_mut().enumerate() {
                let lanes = |row: usize| &near[row % window][step];
                *maximum = (first + 1..=last).fold(*lanes(first), |maximum, row| larger(maximum, lanes(row)));
            }
            each(y, &maxima.as_flattened()[..width]);
        }
    }
}

#[inline(always)]
fn larger(mut maximum: Lanes, other: &Lanes) -> Lanes {
    for (value, &other) in maximum.iter_mut().zip(other) {
        // Not `f32::max`: its care for NaN keeps it from being one instruction, and scores have none.
        *value = if other > *value { other } else { *value };
    }
    maximum
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

    /// Which pixels survive.
    fn survivors(
        suppress: impl Fn(&mut Suppression, &[f32], Size, usize, &mut dyn FnMut(usize, &[f32])),
        scores: &[f32],
        size: Size,
        radius: usize,
    ) -> Vec<bool> {
        let mut bars = Vec::new();
        suppress(&mut Suppression::default(), scores, size, radius, &mut |y, row| {
            assert_eq!(y * size.width, bars.len(), "rows come from the top, each once");
            bars.extend_from_slice(row);
        });
        scores.iter().zip(bars).map(|(&score, bar)| score == bar).collect()
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
            let expected: Vec<bool> = scores.iter().zip(&maxima).map(|(score, maximum)| score == maximum).collect();
            prop_assert_eq!(survivors(|s, scores, size, radius, row| s.single_pass(scores, size, radius, 0..size.height, row), &scores, size, radius), expected);
        }

        #[test]
        fn iterated_is_simple_nms((size, scores) in maps(), radius in 0usize..10) {
            let expected = simple_nms(&scores, size, radius);
            prop_assert_eq!(survivors(|s, scores, size, radius, row| s.iterated(scores, size, radius, row), &scores, size, radius), expected);
        }
    }

    #[test]
    fn all_of_a_plateau_survive() {
        for radius in [0, 1, 32] {
            let survivors = survivors(
                |s, scores, size, radius, row| s.single_pass(scores, size, radius, 0..size.height, row),
                &[0.5; 12],
                Size::new(3, 4),
                radius,
            );
            assert_eq!(survivors, [true; 12], "radius {radius}");
        }
    }
}
