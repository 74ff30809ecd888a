//! What a caller may choose for one detection.

use crate::{Error, Size};

/// How keypoints are taken from the score map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Postprocess {
    /// One pass of non-maximum suppression, border removed on all four sides; what the published p150 package does.
    #[default]
    Package,
    /// What `transformers`' `SuperPointForKeypointDetection` does: two further passes of suppression that
    /// bring back maxima near suppressed ones, border removed at the top and left only.
    Upstream,
}

impl Postprocess {
    /// As it is written in options and parameters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Package => "package",
            Self::Upstream => "upstream",
        }
    }
}

impl std::str::FromStr for Postprocess {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "package" => Ok(Self::Package),
            "upstream" => Ok(Self::Upstream),
            other => Err(Error::Param {
                name: "postprocess",
                value: format!("`{other}`"),
                expected: "`package` or `upstream`",
            }),
        }
    }
}

/// Parameters of one detection. The defaults are those of the published package.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The best so many keypoints are kept; `None` keeps all. At most [`Params::MAX_KEYPOINTS`].
    pub max_keypoints: Option<usize>,
    /// Keypoints must score above this, 0 to 1.
    pub keypoint_threshold: f32,
    /// Radius of the suppression window in pixels of the network frame, 0 (none) to [`Params::MAX_NMS_RADIUS`].
    pub nms_radius: usize,
    /// Keypoints closer than this to a border of the network frame are removed, in pixels, 0 to
    /// [`Params::MAX_BORDER`].
    pub border_removal_distance: usize,
    /// Whether to compute descriptors.
    pub return_descriptors: bool,
    /// How keypoints are taken from the score map.
    pub postprocess: Postprocess,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            max_keypoints: Some(1024),
            keypoint_threshold: 0.005,
            nms_radius: 4,
            border_removal_distance: 4,
            return_descriptors: true,
            postprocess: Postprocess::Package,
        }
    }
}

impl Params {
    /// No more keypoints than a network frame of the published size has pixels.
    pub const MAX_KEYPOINTS: usize = Size::NETWORK.area();
    /// The widest suppression window is 65 pixels.
    pub const MAX_NMS_RADIUS: usize = 32;
    /// The widest border that can be removed.
    pub const MAX_BORDER: usize = 240;

    /// Reads the number that users write: -1 keeps all keypoints.
    ///
    /// # Errors
    ///
    /// If `number` is neither -1 nor 0 to [`Params::MAX_KEYPOINTS`].
    pub fn max_keypoints_from(number: i64) -> Result<Option<usize>, Error> {
        match usize::try_from(number) {
            Ok(count) if count <= Self::MAX_KEYPOINTS => Ok(Some(count)),
            Err(_) if number == -1 => Ok(None),
            _ => Err(Error::Param {
                name: "max_keypoints",
                value: number.to_string(),
                expected: "-1 (all) or 0 to 307200",
            }),
        }
    }

    /// The number that users write for [`Params::max_keypoints`].
    pub fn max_keypoints_number(&self) -> i64 {
        self.max_keypoints.map_or(-1, |count| i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Checks every range.
    ///
    /// # Errors
    ///
    /// [`Error::Param`] for the first value out of its range.
    pub fn check(&self) -> Result<(), Error> {
        Self::max_keypoints_from(self.max_keypoints_number())?;
        // Written so that NaN is refused too.
        if !(0.0..=1.0).contains(&self.keypoint_threshold) {
            return Err(Error::Param {
                name: "keypoint_threshold",
                value: self.keypoint_threshold.to_string(),
                expected: "0 to 1",
            });
        }
        if self.nms_radius > Self::MAX_NMS_RADIUS {
            return Err(Error::Param {
                name: "nms_radius",
                value: self.nms_radius.to_string(),
                expected: "an integer of 0 (no suppression) to 32",
            });
        }
        if self.border_removal_distance > Self::MAX_BORDER {
            return Err(Error::Param {
                name: "border_removal_distance",
                value: self.border_removal_distance.to_string(),
                expected: "0 to 240",
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range() {
        assert!(Params::default().check().is_ok());
    }

    #[test]
    fn each_bound_is_enforced_and_named() {
        let p = Params::default;
        for (params, name) in [
            (Params { max_keypoints: Some(307_201), ..p() }, "max_keypoints is 307201"),
            (Params { keypoint_threshold: 1.01, ..p() }, "keypoint_threshold is 1.01"),
            (Params { keypoint_threshold: -0.1, ..p() }, "keypoint_threshold is -0.1"),
            (Params { keypoint_threshold: f32::NAN, ..p() }, "keypoint_threshold is NaN"),
            (Params { nms_radius: 33, ..p() }, "nms_radius is 33"),
            (Params { border_removal_distance: 241, ..p() }, "border_removal_distance is 241"),
        ] {
            let text = params.check().expect_err(name).to_string();
            assert!(text.contains(name), "{text}");
        }
        for params in [
            Params { max_keypoints: None, nms_radius: 0, keypoint_threshold: 0.0, ..p() },
            Params { max_keypoints: Some(307_200), nms_radius: 32, keypoint_threshold: 1.0, ..p() },
            Params { max_keypoints: Some(0), border_removal_distance: 0, ..p() },
        ] {
            assert!(params.check().is_ok(), "{params:?}");
        }
    }

    #[test]
    fn minus_one_keeps_all() {
        assert_eq!(Params::max_keypoints_from(-1).ok(), Some(None));
        assert_eq!(Params::max_keypoints_from(0).ok(), Some(Some(0)));
        assert!(Params::max_keypoints_from(-2).is_err());
        assert!(Params::max_keypoints_from(i64::MIN).is_err());
    }
}
