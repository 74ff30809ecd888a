//! `superpoint info`: which backend and which weights would be used.

use serde::Serialize;

use super::{DetectorArgs, Outcome, open, print};
use crate::response::{ImageSize, ServingPath};

#[derive(Serialize)]
struct Info<'a> {
    version: &'static str,
    backend: &'static str,
    /// What runs where.
    description: &'a str,
    /// Why this backend, where `auto` chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    weights: WeightsInfo<'a>,
    image_size: ImageSize,
    serving_path: ServingPath,
}

#[derive(Serialize)]
struct WeightsInfo<'a> {
    name: &'a str,
    revision: Option<&'a str>,
    sha256: &'a str,
    /// `bundled`, or the file.
    path: String,
}

pub(super) fn run(args: &DetectorArgs) -> anyhow::Result<Outcome> {
    let detector = open(&args.settings()?)?;
    let model = detector.model();
    let weights = &model.weights;
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        backend: model.backend.name(),
        description: &model.description,
        reason: model.reason.as_deref(),
        weights: WeightsInfo {
            name: &weights.name,
            revision: weights.revision.as_deref(),
            sha256: &weights.sha256,
            path: weights.path.as_ref().map_or_else(|| "bundled".to_owned(), |path| path.display().to_string()),
        },
        image_size: model.network.into(),
        serving_path: model.serving_path.into(),
    };
    print(&format!("{}\n", serde_json::to_string_pretty(&info)?))?;
    Ok(Outcome::Done)
}
