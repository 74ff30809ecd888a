//! The page's pictures, as SVG.
//!
//! Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any kind of colour vision tell
//! apart, and viridis for amounts.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Of plots, in pixels; the page shows them about as large.
const SIZE: (u32, u32) = (600, 240);
/// Of the picture of a frame.
const FRAME_SIZE: (u32, u32) = (600, 400);
const FONT: (&str, i32) = ("sans-serif", 14);
const GRID_LINES: RGBColor = RGBColor(225, 225, 225);

/// Points that a line of a plot has at most: more than the plot has pixels are not seen.
const MAX_POINTS: usize = 1500;

/// Colours of lines, in the order in which they are used.
pub(super) const COLORS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

/// How something of a run is drawn, and what it is called.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) color: RGBColor,
    /// So that two lines of a colour, of one measure in two runs, can be told apart.
    pub(super) dashed: bool,
}

/// Length of a dash and of the gap behind it, in pixels.
const DASH: (u32, u32) = (7, 4);

/// Amounts from none to most.
pub(super) const VIRIDIS: [[u8; 3]; 5] = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/// A line: points from left to right, with gaps where there is no value.
pub(super) struct Line {
    pub(super) key: Key,
    pub(super) points: Vec<(f64, Option<f64>)>,
}

/// Lines over time in seconds.
pub(super) fn lines(y_label: &str, lines: &[Line]) -> anyhow::Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    // A recording's clock may have been set back.
    let (first, last) = all().fold((0.0, 1e-3), |(first, last), &(x, _)| (x.min(first), x.max(last)));
    let values = || all().filter_map(|(_, y)| *y);
    let bounds = bounds(values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    draw(SIZE, |root| {
        let mut chart = chart(root).build_cartesian_2d(first..last, bounds)?;
        mesh(&mut chart, "time in the recording (s)", y_label, number)?;
        for line in lines {
            let style = line.key.color.stroke_width(2);
            let thinned = thinned(&line.points);
            for run in thinned.split(|(_, y)| y.is_none()) {
                let run: Vec<(f64, f64)> = run.iter().filter_map(|&(x, y)| Some((x, y?))).collect();
                match run[..] {
                    [point] => _ = chart.draw_series([Circle::new(point, 2, line.key.color.filled())])?,
                    _ if line.key.dashed => {
                        _ = chart.draw_series(DashedLineSeries::new(run, DASH.0, DASH.1, style))?;
                    }
                    _ => _ = chart.draw_series(LineSeries::new(run, style))?,
                }
            }
        }
        Ok(())
    })
}

/// A histogram: counts between bounds, which are one more; `label` writes a bound.
pub(super) fn bars(
    [x_label, y_label]: [&str; 2],
    bounds: &[f64],
    runs: &[&[f64]],
    label: impl Fn(f64) -> String,
) -> anyhow::Result<String> {
    let (first, last) = (bounds.first().copied().unwrap_or(0.0), bounds.last().copied().unwrap_or(1.0));
    let most = runs.iter().flat_map(|run| run.iter().copied()).fold(0.0, f64::max);
    draw(SIZE, |root| {
        let mut chart = chart(root).build_cartesian_2d(first..last, 0.0..(1.05 * most).max(1e-9))?;
        mesh(&mut chart, x_label, y_label, label)?;
        // Of several runs the first is filled, the others are outlines over it.
        for (index, (counts, color)) in runs.iter().zip(COLORS.iter().cycle()).enumerate() {
            for (step, &count) in bounds.windows(2).zip(*counts) {
                let corners = [(step[0], 0.0), (step[1], count)];
                let style = if index == 0 { color.mix(0.75).filled() } else { color.stroke_width(2) };
                chart.draw_series([Rectangle::new(corners, style)])?;
            }
        }
        Ok(())
    })
}

/// Amounts over a frame of `size` (height, width), in equal fields, row by row.
pub(super) fn fields(
    amounts: &[u64],
    [rows, columns]: [usize; 2],
    [height, width]: [usize; 2],
) -> anyhow::Result<String> {
    let most = amounts.iter().copied().max().unwrap_or(0).max(1);
    let (right, bottom) = (width as i32, height as i32);
    draw(FRAME_SIZE, |root| {
        let mut chart = chart(root).build_cartesian_2d(0..right, bottom..0)?;
        for (index, &amount) in amounts.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let corner = |row: usize, column: usize| ((column * width / columns) as i32, (row * height / rows) as i32);
            let color = viridis(amount as f64 / most as f64);
            chart.draw_series([Rectangle::new([corner(row, column), corner(row + 1, column + 1)], color.filled())])?;
        }
        mesh_without_lines(&mut chart, "column in the network frame (px)", "row (px)")
    })
}

/// A number as axes show it: no more digits than it needs.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1e6 {
        format!("{:.1}M", value / 1e6)
    } else if magnitude >= 1e4 {
        format!("{:.0}k", value / 1e3)
    } else {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

type Root<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;

fn draw(size: (u32, u32), act: impl FnOnce(&Root<'_>) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        act(&root)?;
        root.present()?;
    }
    Ok(svg)
}

fn chart<'a, 'b>(root: &'a Root<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(root);
    builder.margin(6).margin_right(20).x_label_area_size(42).y_label_area_size(62);
    builder
}

/// Axes and grid; `label` writes the numbers of the horizontal axis.
fn mesh(
    chart: &mut Chart<'_, '_, RangedCoordf64, RangedCoordf64>,
    x: &str,
    y: &str,
    label: impl Fn(f64) -> String,
) -> anyhow::Result<()> {
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|x| label(*x))
        .y_label_formatter(&|y| number(*y))
        .label_style(FONT)
        .axis_desc_style(FONT)
        .bold_line_style(GRID_LINES)
        .light_line_style(TRANSPARENT)
        .draw()?;
    Ok(())
}

fn mesh_without_lines<X, Y>(chart: &mut Chart<'_, '_, X, Y>, x: &str, y: &str) -> anyhow::Result<()>
where
    X: Ranged<ValueType = i32> + ValueFormatter<i32>,
    Y: Ranged<ValueType = i32> + ValueFormatter<i32>,
{
    chart.configure_mesh().disable_mesh().x_desc(x).y_desc(y).label_style(FONT).axis_desc_style(FONT).draw()?;
    Ok(())
}

/// From 0, or from below the smallest value where that is far from 0, to above the largest.
fn bounds(smallest: f64, largest: f64) -> Range<f64> {
    if !smallest.is_finite() || !largest.is_finite() {
        return 0.0..1.0;
    }
    let low = if smallest >= 0.0 { 0.0 } else { smallest };
    let high = largest.max(low + 1e-3);
    let margin = 0.05 * (high - low);
    (if low < 0.0 { low - margin } else { low })..high + margin
}

/// Of many points, the lowest and the highest of each stretch, so that no peak is lost.
fn thinned(points: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(MAX_POINTS / 2);
    let mut kept = Vec::with_capacity(MAX_POINTS);
    for chunk in points.chunks(stretch) {
        let known = || chunk.iter().enumerate().filter(|(_, (_, y))| y.is_some());
        let by_value = |a: &(usize, &(f64, Option<f64>)), b: &(usize, &(f64, Option<f64>))| {
            a.1.1.unwrap_or(0.0).total_cmp(&b.1.1.unwrap_or(0.0))
        };
        match (known().min_by(by_value), known().max_by(by_value)) {
            (Some((low, _)), Some((high, _))) => {
                kept.push(chunk[low.min(high)]);
                if low != high {
                    kept.push(chunk[low.max(high)]);
                }
            }
            _ => kept.push((chunk[0].0, None)),
        }
    }
    kept
}

fn viridis(share: f64) -> RGBColor {
    let position = share.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
    let step = (position as usize).min(VIRIDIS.len() - 2);
    let part = position - step as f64;
    let mixed: [u8; 3] = std::array::from_fn(|channel| {
        let (from, to) = (f64::from(VIRIDIS[step][channel]), f64::from(VIRIDIS[step + 1][channel]));
        (from + (to - from) * part).round() as u8
    });
    RGBColor(mixed[0], mixed[1], mixed[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_peaks_and_gaps() {
        let mut points: Vec<(f64, Option<f64>)> = (0..100_000).map(|step| (f64::from(step), Some(1.0))).collect();
        points[54_321].1 = Some(99.0);
        points[12_345].1 = Some(-5.0);
        points[70_000..71_000].iter_mut().for_each(|(_, y)| *y = None);
        let thinned = thinned(&points);
        assert!(thinned.len() <= MAX_POINTS, "{}", thinned.len());
        assert!(thinned.contains(&(54_321.0, Some(99.0))) && thinned.contains(&(12_345.0, Some(-5.0))));
        assert!(thinned.iter().any(|(_, y)| y.is_none()));
        assert!(thinned.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (0.25, "0.25"), (1200.0, "1200"), (45_000.0, "45k"), (2.5e6, "2.5M"), (-3.0, "-3")]
        {
            assert_eq!(number(value), text);
        }
    }
}
