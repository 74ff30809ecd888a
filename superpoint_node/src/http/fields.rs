//! What a request says: the picture and the optional fields, from JSON or from the query, with the same names, ranges
//! and error texts.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tt_backend::{Params, Size};
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;

/// The optional fields of a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, IntoParams, ToSchema)]
#[into_params(parameter_in = Query)]
pub(super) struct Fields {
    /// Keep the best so many keypoints; -1 keeps every one above the threshold.
    #[param(minimum = -1, maximum = 307_200, default = 1024)]
    #[schema(minimum = -1, maximum = 307_200, default = 1024)]
    max_keypoints: Option<i64>,
    /// Least score, exclusive.
    #[param(minimum = 0, maximum = 1, default = 0.005)]
    #[schema(minimum = 0, maximum = 1, default = 0.005)]
    keypoint_threshold: Option<f64>,
    /// Radius of non-maximum suppression in pixels of the 480x640 network frame; 0 is none.
    #[param(minimum = 0, maximum = 32, default = 4)]
    #[schema(minimum = 0, maximum = 32, default = 4)]
    nms_radius: Option<i64>,
    /// False leaves out `descriptors`.
    #[param(default = true)]
    #[schema(default = true)]
    return_descriptors: Option<bool>,
}

/// The body of `/predict`.
#[derive(ToSchema)]
#[allow(dead_code)] // The schema's type; the body is read where it lies, by `read_predict_body`.
pub(super) struct PredictRequest {
    /// A PNG or JPEG file, base64.
    #[schema(content_encoding = "base64")]
    image: String,
    #[schema(inline)]
    #[serde(flatten)]
    fields: Fields,
}

/// What `/predict` was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The bytes of the picture file.
    pub image: Vec<u8>,
    /// The parameters, in range.
    pub params: Params,
}

/// Fields as they stand in the body. A value's text is looked at later, so that an error can name it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBody<'a> {
    #[serde(borrow)]
    image: Option<&'a RawValue>,
    #[serde(borrow)]
    max_keypoints: Option<&'a RawValue>,
    #[serde(borrow)]
    keypoint_threshold: Option<&'a RawValue>,
    #[serde(borrow)]
    nms_radius: Option<&'a RawValue>,
    #[serde(borrow)]
    return_descriptors: Option<&'a RawValue>,
}

/// Reads the JSON body of `/predict`.
///
/// # Errors
///
/// One sentence about the first thing that is wrong.
pub fn read_predict_body(body: &[u8], defaults: &Params) -> Result<Request, Problem> {
    let invalid = |error: serde_json::Error| {
        // It names an unknown field in full, whatever its length.
        Problem::bad(format!("the body is not the JSON that is expected: {}", without_middle(&error.to_string())))
    };
    if body.trim_ascii_start().first() != Some(&b'{') {
        // serde would also take an array for a struct.
        serde_json::from_slice::<&RawValue>(body).map_err(invalid)?;
        return Err(Problem::bad(
            "the body is JSON but no object; expected {\"image\": \"<base64 of a PNG or JPEG>\"}",
        ));
    }
    let raw: RawBody = serde_json::from_slice(body).map_err(invalid)?;
    let fields = Fields {
        max_keypoints: raw.max_keypoints.map(|value| integer("max_keypoints", value.get())).transpose()?,
        keypoint_threshold: raw.keypoint_threshold.map(|value| threshold(value.get())).transpose()?,
        nms_radius: raw.nms_radius.map(|value| integer("nms_radius", value.get())).transpose()?,
        return_descriptors: raw
            .return_descriptors
            .map(|value| match value.get() {
                "true" => Ok(true),
                "false" => Ok(false),
                other => Err(wrong("return_descriptors", other, "true or false")),
            })
            .transpose()?,
    };
    let params = fields.apply(defaults)?;
    let image = raw.image.ok_or_else(|| Problem::bad("image is missing; it must be a PNG or JPEG file, base64"))?;
    Ok(Request { image: base64(&text_of(image)?)?, params })
}

/// The string, without a copy when nothing in it is escaped.
fn text_of(image: &RawValue) -> Result<Cow<'_, str>, Problem> {
    let raw = image.get();
    match raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')) {
        Some(text) if !text.contains('\\') => Ok(Cow::Borrowed(text)),
        Some(_) => serde_json::from_str(raw)
            .map(Cow::Owned)
            .map_err(|error| Problem::bad(format!("image is no valid string: {error}"))),
        None => Err(wrong("image", raw, "a string with a PNG or JPEG file, base64")),
    }
}

/// The bytes. Line breaks are skipped: many programs write base64 with them.
fn base64(text: &str) -> Result<Vec<u8>, Problem> {
    let decoded = base64_simd::STANDARD.decode_to_vec(text);
    let decoded = decoded.or_else(|error| {
        let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
        if !text.bytes().any(|byte| is_break(&byte)) {
            return Err(error);
        }
        let unbroken: Vec<u8> = text.bytes().filter(|byte| !is_break(byte)).collect();
        base64_simd::STANDARD.decode_to_vec(unbroken)
    });
    decoded.map_err(|_| {
        let stray =
            |character: char| !character.is_ascii_alphanumeric() && !matches!(character, '+' | '/' | '=' | '\r' | '\n');
        Problem::bad(match text.chars().enumerate().find(|&(_, character)| stray(character)) {
            Some(_) if text.starts_with("data:") => {
                "image is a data URL, but must be base64 alone: what stands behind the comma".to_owned()
            }
            Some((position, character)) => {
                format!("image is not valid base64: character {character:?} at position {position}")
            }
            None => format!("image is not valid base64: wrong padding, or cut off, at {} characters", text.len()),
        })
    })
}

/// What stands in the query: the optional fields, and `height` and `width` where a plane is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Query {
    pub(super) fields: Fields,
    height: Option<i64>,
    width: Option<i64>,
}

impl Query {
    /// Reads a query without its question mark. Unknown and repeated names are errors.
    pub(super) fn read(query: &str, with_size: bool) -> Result<Self, Problem> {
        let mut found = Self::default();
        let mut seen: Vec<Cow<'_, str>> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if seen.contains(&name) {
                return Err(Problem::bad(format!("{} is given twice", shown(&name))));
            }
            match &*name {
                "max_keypoints" => found.fields.max_keypoints = Some(integer("max_keypoints", &value)?),
                "keypoint_threshold" => found.fields.keypoint_threshold = Some(threshold(&value)?),
                "nms_radius" => found.fields.nms_radius = Some(integer("nms_radius", &value)?),
                "return_descriptors" => found.fields.return_descriptors = Some(switch(&value)?),
                "height" if with_size => found.height = Some(integer("height", &value)?),
                "width" if with_size => found.width = Some(integer("width", &value)?),
                unknown => {
                    let size = if with_size { "height, width, " } else { "" };
                    return Err(Problem::bad(format!(
                        "unknown field {}; expected {size}max_keypoints, keypoint_threshold, nms_radius or \
                         return_descriptors",
                        shown(unknown)
                    )));
                }
            }
            seen.push(name);
        }
        Ok(found)
    }

    /// The size of a plane, which must be there.
    pub(super) fn size(&self) -> Result<Size, Problem> {
        let side = |name: &str, value: Option<i64>| match value {
            None => Err(Problem::bad(format!("{name} is missing; it must be the plane's {name} in pixels"))),
            Some(value) => usize::try_from(value)
                .ok()
                .filter(|value| (1..=tt_backend::Plane::MAX_SIDE).contains(value))
                .ok_or_else(|| wrong(name, &value.to_string(), "an integer of 1 to 65535")),
        };
        Ok(Size::new(side("height", self.height)?, side("width", self.width)?))
    }
}

impl Fields {
    /// The defaults with these fields laid over them, in range.
    pub(super) fn apply(&self, defaults: &Params) -> Result<Params, Problem> {
        let mut params = defaults.clone();
        let refused = |error: tt_backend::Error| Problem::bad(error.to_string());
        if let Some(number) = self.max_keypoints {
            params.max_keypoints = Params::max_keypoints_from(number).map_err(refused)?;
        }
        if let Some(number) = self.keypoint_threshold {
            // As a double: in single precision 1.00000001 would be 1.
            if !(0.0..=1.0).contains(&number) {
                return Err(wrong("keypoint_threshold", &number.to_string(), "0 to 1"));
            }
            params.keypoint_threshold = number as f32;
        }
        if let Some(number) = self.nms_radius {
            params.nms_radius = usize::try_from(number)
                .map_err(|_| wrong("nms_radius", &number.to_string(), "an integer of 0 (no suppression) to 32"))?;
        }
        if let Some(yes) = self.return_descriptors {
            params.return_descriptors = yes;
        }
        params.check().map_err(refused)?;
        Ok(params)
    }
}

/// An integer; `4.0` is one too, as in JSON Schema.
fn integer(name: &str, text: &str) -> Result<i64, Problem> {
    const EXACT: f64 = (1_i64 << 53) as f64;
    if let Ok(number) = text.parse::<i64>() {
        return Ok(number);
    }
    match text.parse::<f64>() {
        Ok(number) if number.fract() == 0.0 && number.abs() <= EXACT => Ok(number as i64),
        _ => Err(wrong(name, text, "an integer")),
    }
}

fn threshold(text: &str) -> Result<f64, Problem> {
    text.parse().map_err(|_| wrong("keypoint_threshold", text, "a number of 0 to 1"))
}

/// A truth value in a query, in the spellings that the published server's framework takes; Python's `requests` writes
/// `True`.
fn switch(text: &str) -> Result<bool, Problem> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "y" | "t" => Ok(true),
        "false" | "0" | "no" | "off" | "n" | "f" => Ok(false),
        _ => Err(wrong("return_descriptors", text, "true or false")),
    }
}

fn wrong(name: &str, value: &str, expected: &str) -> Problem {
    Problem::bad(format!("{name} is {}, but must be {expected}", shown(value)))
}

/// A client's text, short enough and harmless in a log.
fn shown(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut short = String::new();
    for character in text.chars().take(SHOWN) {
        if character.is_control() {
            short.extend(character.escape_debug());
        } else {
            short.push(character);
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        short.push('…');
    }
    match short.as_str() {
        "" => "empty".to_owned(),
        // Blanks at its ends would not be seen: a `+` in a query is one.
        _ if text.trim() != text => format!("`{short}`"),
        _ => short,
    }
}

/// A long text's beginning and end.
fn without_middle(text: &str) -> String {
    const SIDE: usize = 150;
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= 2 * SIDE {
        return text.to_owned();
    }
    let (head, tail) = (&characters[..SIDE], &characters[characters.len() - SIDE..]);
    head.iter().chain(&['…']).chain(tail).collect()
}
