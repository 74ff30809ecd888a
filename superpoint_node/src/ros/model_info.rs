//! `~/model_info`: what made the keypoints, as JSON in a latched `std_msgs/String`.
//!
//! JSON, because it is what `superpoint info` prints, because `ros2 topic echo` shows it as it is, and because a
//! field that is added breaks no subscriber, as one in a message of ours would.

use std::sync::Arc;

use r2r::std_msgs::msg::String as Text;
use r2r::{Node, Publisher, QosProfile};
use serde_json::json;
use tt_backend::Model;

/// The publisher, and what it said last.
pub(super) struct ModelInfo {
    publisher: Publisher<Text>,
    said: Arc<Model>,
}

impl ModelInfo {
    /// Publishes it; subscribers get it whenever they come, as long as this is kept.
    pub(super) fn latch(node: &mut Node, model: Arc<Model>) -> r2r::Result<Self> {
        let publisher = node.create_publisher("~/model_info", QosProfile::default().keep_last(1).transient_local())?;
        publisher.publish(&Text { data: text(&model) })?;
        Ok(Self { publisher, said: model })
    }

    /// Publishes it again if another backend has taken over.
    pub(super) fn update(&mut self, model: Arc<Model>) -> r2r::Result<()> {
        if Arc::ptr_eq(&model, &self.said) {
            return Ok(());
        }
        self.publisher.publish(&Text { data: text(&model) })?;
        self.said = model;
        Ok(())
    }
}

fn text(model: &Model) -> String {
    let weights = &model.weights;
    let path = weights.path.as_ref().map_or_else(|| "bundled".to_owned(), |path| path.display().to_string());
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "backend": model.backend.name(),
        "description": model.description,
        "reason": model.reason,
        "serving_path": { "traced": model.serving_path.traced, "device_nms": model.serving_path.device_nms },
        "weights": {
            "name": weights.name,
            "revision": weights.revision,
            "sha256": weights.sha256,
            "path": path,
        },
        "image_size": { "height": model.network.height, "width": model.network.width },
        "descriptor_dim": tt_backend::keypoints::DESCRIPTOR_DIM,
    })
    .to_string()
}
