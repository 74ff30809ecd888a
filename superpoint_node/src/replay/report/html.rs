//! The page: one file, without scripts, that needs nothing from outside.

use std::fmt::Write as _;

use super::Report;
use super::plots::{self, COLORS, Key, Line, VIRIDIS};
use crate::replay::analysis::{AgreementFigures, Distribution, Figures, GRID, TruthFigures};

const STYLE: &str = include_str!("page.css");

/// The page for a run, or for two side by side.
pub(super) fn page(report: &Report, other: Option<&Report>) -> anyhow::Result<String> {
    let title = format!("Replay of {}", escaped(&report.recording.path));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>{title}</h1>\n"
    );
    page += &provenance(report, other);
    page += &troubles(report, other);
    page += &summary(report, other);
    if let Some(agreement) = &report.agreement {
        page += &agreement_table(agreement);
    }
    for figure in figures(report, other)? {
        page += &figure;
    }
    page += "</body></html>\n";
    Ok(page)
}

/// Which run, in its column or its line.
const HERE: &str = "this run";
const THERE: &str = "other run";

/// A line about a run: its name, its text.
type TextRow = (&'static str, fn(&Report) -> String);

fn provenance(report: &Report, other: Option<&Report>) -> String {
    let rows: [TextRow; 7] = [
        ("recording", |report| report.recording.path.clone()),
        ("topic", |report| format!("{} ({})", report.recording.topic, report.recording.message_type)),
        ("images", images),
        ("backend", |report| report.made_by.backend.clone()),
        ("weights", |report| format!("{} (sha256 {:.12}…)", report.made_by.weights, report.made_by.weights_sha256)),
        ("parameters", |report| parameters(&report.made_by.params)),
        ("made by", |report| report.made_by.program.clone()),
    ];
    let mut table = String::from("<table class=\"text\">");
    if other.is_some() {
        let _ = write!(table, "<tr><th></th><th>{HERE}</th><th>{THERE}</th></tr>");
    }
    for (name, value) in rows {
        let _ = write!(table, "<tr><th>{name}</th><td>{}</td>", escaped(&value(report)));
        if let Some(other) = other {
            let _ = write!(table, "<td>{}</td>", escaped(&value(other)));
        }
        table += "</tr>";
    }
    table + "</table>\n"
}

fn images(report: &Report) -> String {
    let recording = &report.recording;
    let mut text = format!("{} of {} messages", report.figures.images, recording.messages);
    if recording.every > 1 {
        let _ = write!(text, ", one in {} taken", recording.every);
    }
    if recording.start_s > 0.0 {
        let _ = write!(text, ", from {} s on", recording.start_s);
    }
    if let Some(duration) = recording.duration_s {
        let _ = write!(text, ", for {duration} s");
    }
    text
}

fn parameters(params: &serde_json::Value) -> String {
    let pairs = params.as_object().into_iter().flatten();
    let texts: Vec<String> = pairs
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name} {text}"),
            None => format!("{name} {value}"),
        })
        .collect();
    texts.join(", ")
}

/// What could not be read or used.
fn troubles(report: &Report, other: Option<&Report>) -> String {
    let recording = &report.recording;
    let mut lines: Vec<String> = recording.damage.iter().map(|reason| escaped(reason)).collect();
    if recording.interrupted {
        lines.push("the replay was interrupted: these are the images until then".to_owned());
    }
    if other.is_some_and(|other| other.recording.interrupted) {
        lines.push("the other run was interrupted, and has the images until then".to_owned());
    }
    if let Some(lost) = recording.lost {
        lines.push(format!("{} images were read, {lost} are lost", recording.messages));
    }
    for (kind, count) in &report.rejected {
        lines.push(format!("{count} images cannot be used: {}", escaped(kind)));
    }
    if let Some(unknown) = report.figures.truth_unknown.filter(|&unknown| unknown > 0) {
        lines.push(format!("of {unknown} images the truth is not known"));
    }
    marked(&lines)
}

/// A list that is seen; nothing of no lines.
fn marked(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    format!("<ul class=\"trouble\"><li>{}</li></ul>\n", lines.join("</li><li>"))
}

/// A line of the summary: name, unit, digits after the point, value.
type Measure = (&'static str, &'static str, usize, fn(&Figures) -> Option<Distribution>);

/// The same of a comparison with the truth.
type TruthMeasure = (&'static str, &'static str, fn(&TruthFigures) -> Option<Distribution>);

const MEASURES: [Measure; 13] = [
    ("keypoints of an image", "", 0, |figures| figures.keypoints),
    ("latency", "ms", 1, |figures| figures.latency_ms),
    ("– decoding", "ms", 1, |figures| figures.decode_ms),
    ("– resizing", "ms", 1, |figures| figures.resize_ms),
    ("– network", "ms", 1, |figures| figures.network_ms),
    ("– keypoints and descriptors", "ms", 1, |figures| figures.keypoints_ms),
    ("matches with the image before", "", 0, |figures| figures.matches),
    ("inlier ratio, camera motion", "", 3, |figures| figures.inlier_ratio),
    ("inlier ratio, one plane", "", 3, |figures| figures.plane_inlier_ratio),
    ("track length", "images", 1, |figures| figures.track_length),
    ("coverage of the frame", "", 3, |figures| figures.coverage),
    ("motion to the right", "px", 2, |figures| figures.motion_x_px),
    ("motion downwards", "px", 2, |figures| figures.motion_y_px),
];

fn summary(report: &Report, other: Option<&Report>) -> String {
    let mut table = String::from("<h2>Summary</h2>\n<div class=\"wide\"><table><tr><th></th><th>unit</th>");
    for column in ["mean", "median", "5 %", "95 %", "min", "max"] {
        let _ = write!(table, "<th>{column}</th>");
    }
    if other.is_some() {
        let _ = write!(table, "<th>{THERE}: mean</th><th>difference</th>");
    }
    table += "</tr>\n";
    for (name, unit, digits, measure) in MEASURES {
        let theirs = other.and_then(|other| measure(&other.figures));
        row(&mut table, name, unit, digits, measure(&report.figures), other.map(|_| theirs));
    }
    for (name, which) in [
        ("image before", (|figures: &Figures| figures.truth_before.clone()) as fn(&Figures) -> Option<TruthFigures>),
        ("first image", |figures| figures.truth_first.clone()),
    ] {
        let Some(ours) = which(&report.figures) else { continue };
        let theirs = other.map(|other| which(&other.figures));
        let columns: [TruthMeasure; 3] = [
            ("repeatability", "", |truth| truth.repeatability),
            ("localisation error", "px", |truth| truth.localisation_px),
            ("matching score", "", |truth| truth.matching_score),
        ];
        for (measure, unit, value) in columns {
            let theirs = theirs.as_ref().map(|theirs| theirs.as_ref().and_then(value));
            row(&mut table, &format!("{measure}, {name}"), unit, 3, value(&ours), theirs);
        }
        let shares = |truth: &TruthFigures| truth.homography_correct.map(|share| format!("{share:.3}")).join(" / ");
        let _ = write!(
            table,
            "<tr><th>homography right within 1 / 3 / 5 px, {name}</th><td></td><td colspan=\"6\" class=\"left\">{} ({} \
             pairs)</td>",
            shares(&ours),
            ours.pairs
        );
        if let Some(theirs) = theirs {
            let _ = write!(table, "<td colspan=\"2\">{}</td>", theirs.as_ref().map(shares).unwrap_or_default());
        }
        table += "</tr>\n";
    }
    let _ = write!(
        table,
        "</table></div>\n<p>{:.2} images a second, reading and writing included. Distances are in pixels of the network frame \
         ({} x {}), motion in pixels of the image. Inliers: matches that agree on one motion of the camera through a rigid \
         scene (fundamental matrix, 1.5 px), or on one plane (homography, 3 px), by RANSAC. A track is a keypoint that is \
         followed from image to image through inliers. Coverage: share of {} x {} fields with a keypoint.</p>\n",
        report.figures.images_per_s, report.made_by.network[0], report.made_by.network[1], GRID[0], GRID[1]
    );
    table
}

fn row(
    table: &mut String,
    name: &str,
    unit: &str,
    digits: usize,
    ours: Option<Distribution>,
    theirs: Option<Option<Distribution>>,
) {
    let Some(ours) = ours else { return };
    let Distribution { mean, median, p5, p95, min, max, .. } = ours;
    let _ = write!(table, "<tr><th>{name}</th><td class=\"left\">{unit}</td>");
    for value in [mean, median, p5, p95, min, max] {
        // What rounds to 0 has no sign.
        let value = if value.abs() < 0.5 * 10f64.powi(-(digits as i32)) { 0.0 } else { value };
        let _ = write!(table, "<td>{value:.digits$}</td>");
    }
    match theirs {
        None => {}
        Some(None) => *table += "<td></td><td></td>",
        Some(Some(theirs)) => {
            // A difference is smaller than what differs.
            let more = digits + 1;
            let _ = write!(table, "<td>{:.digits$}</td><td>{:+.more$}</td>", theirs.mean, mean - theirs.mean);
        }
    }
    *table += "</tr>\n";
}

fn agreement_table(agreement: &AgreementFigures) -> String {
    let damage: Vec<String> = agreement.damage.iter().map(|reason| format!("{THERE}: {}", escaped(reason))).collect();
    let damage = marked(&damage);
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"));
    format!(
        "<h2>Keypoint by keypoint</h2>\n{damage}<table><tr><th>images of both runs</th><td>{}</td></tr><tr><th>images of {HERE} / \
         {THERE} only</th><td>{} / {}</td></tr><tr><th>keypoints of {HERE} / {THERE}</th><td>{} / \
         {}</td></tr><tr><th>within 2 px of each other</th><td>{}</td></tr><tr><th>F1</th><td>{}</td></tr><tr><th>score \
         correlation (Pearson)</th><td>{}</td></tr><tr><th>descriptor correlation \
         (Pearson)</th><td>{}</td></tr></table>\n",
        agreement.images,
        agreement.only_here,
        agreement.only_there,
        agreement.keypoints_here,
        agreement.keypoints_there,
        agreement.same,
        number(agreement.f1),
        number(agreement.score_pcc),
        number(agreement.descriptor_pcc),
    )
}

/// A line of a plot over time: its name, and its values.
type Series = (&'static str, fn(&Report, usize) -> Option<f64>);

fn figures(report: &Report, other: Option<&Report>) -> anyhow::Result<Vec<String>> {
    let runs: Vec<(&Report, &str)> = std::iter::once((report, HERE)).chain(other.map(|other| (other, THERE))).collect();
    let mut page = Vec::new();
    let mut over_time = |title: &str, y_label: &str, series: &[Series]| -> anyhow::Result<()> {
        let mut lines = Vec::new();
        for (run_index, (run, run_name)) in runs.iter().enumerate() {
            for ((name, value), &color) in series.iter().zip(&COLORS) {
                let times = run.frames.time_s.iter().enumerate();
                let points: Vec<(f64, Option<f64>)> = times.map(|(index, &time)| (time, value(run, index))).collect();
                if points.iter().any(|(_, value)| value.is_some()) {
                    let name = if runs.len() > 1 { format!("{name}, {run_name}") } else { (*name).to_owned() };
                    lines.push(Line { key: Key { name, color, dashed: run_index > 0 }, points });
                }
            }
        }
        if !lines.is_empty() {
            // A single line needs no name beside the title.
            let named = if lines.len() > 1 { &lines[..] } else { &[] };
            let keys: Vec<Key> = named.iter().map(|line| line.key.clone()).collect();
            page.push(figure(title, &keys, &plots::lines(y_label, &lines)?));
        }
        Ok(())
    };
    over_time(
        "Keypoints",
        "keypoints of an image",
        &[("keypoints", |report, at| Some(report.frames.keypoints[at].into()))],
    )?;
    let stages: [Series; 4] = [
        ("all stages", |report, at| {
            let frames = &report.frames;
            let stages = [&frames.decode_ms, &frames.resize_ms, &frames.network_ms, &frames.keypoints_ms];
            Some(stages.iter().map(|stage| f64::from(stage[at])).sum())
        }),
        ("decoding", |report, at| Some(report.frames.decode_ms[at].into())),
        ("network", |report, at| Some(report.frames.network_ms[at].into())),
        ("resizing, keypoints and descriptors", |report, at| {
            Some(f64::from(report.frames.resize_ms[at]) + f64::from(report.frames.keypoints_ms[at]))
        }),
    ];
    // Of two runs the sums alone: eight lines are too many.
    over_time("Latency", "time for an image (ms)", if other.is_some() { &stages[..1] } else { &stages })?;
    let counts: [Series; 3] = [
        ("matches", |report, at| report.frames.matches[at].map(f64::from)),
        ("inliers, camera motion", |report, at| report.frames.inliers[at].map(f64::from)),
        ("inliers, one plane", |report, at| report.frames.plane_inliers[at].map(f64::from)),
    ];
    over_time("Matches with the image before", "matches", if other.is_some() { &counts[..2] } else { &counts })?;
    over_time(
        "Inlier ratio",
        "inliers / matches",
        &[
            ("camera motion", |report, at| share(report.frames.inliers[at], report.frames.matches[at])),
            ("one plane", |report, at| share(report.frames.plane_inliers[at], report.frames.matches[at])),
        ],
    )?;
    over_time(
        "Repeatability against the truth",
        "repeatability",
        &[
            ("image before", |report, at| report.frames.truth_before[at]?.repeatability),
            ("first image", |report, at| report.frames.truth_first[at]?.repeatability),
        ],
    )?;
    over_time(
        "Localisation error against the truth",
        "error (px)",
        &[
            ("image before", |report, at| report.frames.truth_before[at]?.localisation_px),
            ("first image", |report, at| report.frames.truth_first[at]?.localisation_px),
        ],
    )?;
    over_time(
        "Error of the estimated homography",
        "mean distance of corners (px)",
        &[
            ("image before", |report, at| report.frames.truth_before[at]?.corner_error_px),
            ("first image", |report, at| report.frames.truth_first[at]?.corner_error_px),
        ],
    )?;
    let keys: Vec<Key> = match other {
        Some(_) => [HERE, THERE]
            .iter()
            .zip(COLORS)
            .map(|(&name, color)| Key { name: name.to_owned(), color, dashed: false })
            .collect(),
        None => Vec::new(),
    };
    if runs.iter().any(|(run, _)| !run.track_lengths.is_empty()) {
        page.push(figure("Track lengths", &keys, &tracks(&runs)?));
    }
    page.push(figure("Scores", &keys, &scores(&runs)?));
    for (run, name) in &runs {
        let per_image = |count: u64| count as f64 / run.figures.images.max(1) as f64;
        let most = per_image(run.spread.field_counts.iter().copied().max().unwrap_or(0));
        let stops: Vec<String> = VIRIDIS.iter().map(|[r, g, b]| format!("rgb({r},{g},{b})")).collect();
        let which = if runs.len() > 1 { format!(", {name}") } else { String::new() };
        let svg = plots::fields(&run.spread.field_counts, GRID, run.made_by.network)?;
        page.push(format!(
            "<figure><figcaption><b>Keypoints over the frame{which}</b> <span>keypoints of a field in an image: 0 <i \
             class=\"scale\" style=\"background:linear-gradient(90deg,{})\"></i> {most:.1}</span></figcaption>{svg}</figure>\n",
            stops.join(",")
        ));
    }
    Ok(page)
}

fn share(part: Option<u32>, whole: Option<u32>) -> Option<f64> {
    part.zip(whole).filter(|&(_, whole)| whole > 0).map(|(part, whole)| f64::from(part) / f64::from(whole))
}

/// Lengths in steps of as many images each, so that recordings of any length fit.
fn tracks(runs: &[(&Report, &str)]) -> anyhow::Result<String> {
    let longest = runs.iter().map(|(run, _)| run.track_lengths.len()).max().unwrap_or(0).max(1);
    let step = longest.div_ceil(40);
    let bounds: Vec<usize> = (0..=longest.div_ceil(step)).map(|at| 1 + at * step).collect();
    let shares: Vec<Vec<f64>> = runs
        .iter()
        .map(|(run, _)| {
            let all = run.track_lengths.iter().sum::<u64>().max(1) as f64;
            let count = |step: &[usize]| {
                (step[0]..step[1]).filter_map(|length| run.track_lengths.get(length - 1)).sum::<u64>() as f64
            };
            bounds.windows(2).map(|step| 100.0 * count(step) / all).collect()
        })
        .collect();
    // A bar stands around its length.
    let bounds: Vec<f64> = bounds.iter().map(|&bound| bound as f64 - 0.5).collect();
    let shares: Vec<&[f64]> = shares.iter().map(Vec::as_slice).collect();
    plots::bars(["images in which a keypoint is followed", "share of tracks (%)"], &bounds, &shares, plots::number)
}

/// On a logarithmic scale: scores spread over orders of magnitude.
fn scores(runs: &[(&Report, &str)]) -> anyhow::Result<String> {
    let (first, _) = runs[0];
    let bounds: Vec<f64> = first.spread.score_bounds.iter().map(|bound| bound.log10()).collect();
    let per_image: Vec<Vec<f64>> = runs
        .iter()
        .map(|(run, _)| {
            let images = run.figures.images.max(1) as f64;
            run.spread.score_counts.iter().map(|&count| count as f64 / images).collect()
        })
        .collect();
    let per_image: Vec<&[f64]> = per_image.iter().map(Vec::as_slice).collect();
    // The scale is cut where no run has a keypoint.
    let empty = (0..bounds.len() - 1).take_while(|&step| per_image.iter().all(|run| run[step] == 0.0)).count();
    let empty = empty.min(bounds.len() - 2);
    let per_image: Vec<&[f64]> = per_image.iter().map(|run| &run[empty..]).collect();
    plots::bars(["score", "keypoints of an image"], &bounds[empty..], &per_image, |exponent| {
        let value = 10f64.powf(exponent);
        let digits = (1.0 - exponent.floor()).max(2.0) as usize;
        format!("{value:.digits$}")
    })
}

fn figure(title: &str, keys: &[Key], svg: &str) -> String {
    let mut legend = String::new();
    for Key { name, color, dashed } in keys {
        let style = if *dashed { "dashed" } else { "solid" };
        let _ = write!(
            legend,
            " <span><i style=\"border-top-style:{style};border-top-color:rgb({},{},{})\"></i>{}</span>",
            color.0,
            color.1,
            color.2,
            escaped(name)
        );
    }
    format!("<figure><figcaption><b>{title}</b>{legend}</figcaption>{svg}</figure>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
