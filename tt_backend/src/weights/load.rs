//! Reading a safetensors file and checking that it holds SuperPoint's tensors.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use half::{bf16, f16};
use ndarray::{Array1, Array4};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use super::{Conv, Provenance, Weights};
use crate::Error;

/// Larger files are refused unread. SuperPoint has 1,300,865 parameters, 5.2 MB in f32.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// One convolution in the file: the name before `.weight` and `.bias`, and its shape.
struct Layer {
    name: &'static str,
    output: usize,
    input: usize,
    kernel: usize,
}

const fn layer(name: &'static str, input: usize, output: usize, kernel: usize) -> Layer {
    Layer { name, output, input, kernel }
}

/// Every tensor of the network, with the names of `transformers`' `SuperPointForKeypointDetection`.
const ENCODER: [Layer; 8] = [
    layer("encoder.conv_blocks.0.conv_a", 1, 64, 3),
    layer("encoder.conv_blocks.0.conv_b", 64, 64, 3),
    layer("encoder.conv_blocks.1.conv_a", 64, 64, 3),
    layer("encoder.conv_blocks.1.conv_b", 64, 64, 3),
    layer("encoder.conv_blocks.2.conv_a", 64, 128, 3),
    layer("encoder.conv_blocks.2.conv_b", 128, 128, 3),
    layer("encoder.conv_blocks.3.conv_a", 128, 128, 3),
    layer("encoder.conv_blocks.3.conv_b", 128, 128, 3),
];
const SCORE: [Layer; 2] =
    [layer("keypoint_decoder.conv_score_a", 128, 256, 3), layer("keypoint_decoder.conv_score_b", 256, 65, 1)];
const DESCRIPTOR: [Layer; 2] = [
    layer("descriptor_decoder.conv_descriptor_a", 128, 256, 3),
    layer("descriptor_decoder.conv_descriptor_b", 256, 256, 1),
];

impl Layer {
    fn weight_name(&self) -> String {
        format!("{}.weight", self.name)
    }

    fn bias_name(&self) -> String {
        format!("{}.bias", self.name)
    }
}

/// Reads a whole file, but only a regular one of at most [`MAX_FILE_BYTES`].
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>, Error> {
    let refuse = |reason: io::Error| Error::WeightsRead { path: path.to_path_buf(), reason };
    // Asked before opening: opening a pipe would wait for its other end.
    let metadata = std::fs::metadata(path).map_err(|error| refuse(dangling_link(path).unwrap_or(error)))?;
    if metadata.is_dir() {
        return Err(refuse(io::Error::other("it is a folder; give the .safetensors file in it")));
    }
    if !metadata.is_file() {
        return Err(refuse(io::Error::other("it is a device or a pipe, not a file")));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(refuse(too_large(metadata.len())));
    }
    let mut bytes = Vec::new();
    // The bound again while reading: a file may grow, and some in /proc claim to be empty.
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(refuse)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(refuse(too_large(bytes.len() as u64)));
    }
    Ok(bytes)
}

fn too_large(bytes: u64) -> io::Error {
    io::Error::other(format!(
        "it has {bytes} bytes or more, but SuperPoint's weights have about 5 million; the limit is {MAX_FILE_BYTES}"
    ))
}

/// An explanation for "not found" when the path is there, but as a link to nothing.
fn dangling_link(path: &Path) -> Option<io::Error> {
    let target = std::fs::read_link(path).ok()?;
    Some(io::Error::new(
        io::ErrorKind::NotFound,
        format!("it is a link to {}, which cannot be reached; fetch the weights again", target.display()),
    ))
}

/// Checks and converts a whole file. The error is the reason without the file's name.
pub(super) fn parse(bytes: &[u8]) -> Result<Weights, String> {
    let file = deserialize(bytes)?;
    check_names(&file)?;
    Ok(Weights {
        encoder: convs(&file, &ENCODER)?,
        score: convs(&file, &SCORE)?,
        descriptor: convs(&file, &DESCRIPTOR)?,
        provenance: provenance(bytes),
    })
}

fn deserialize(bytes: &[u8]) -> Result<SafeTensors<'_>, String> {
    refuse_other_formats(bytes)?;
    SafeTensors::deserialize(bytes).map_err(|error| match error {
        safetensors::SafeTensorError::MetadataIncompleteBuffer | safetensors::SafeTensorError::InvalidHeaderLength => {
            format!(
                "the file is cut off or damaged: it has {} bytes, which is not what its header declares; get it again",
                bytes.len()
            )
        }
        error => format!("not a valid safetensors file: {error}"),
    })
}

/// Names the formats that people mistake for safetensors, instead of complaining about a header.
fn refuse_other_formats(bytes: &[u8]) -> Result<(), String> {
    let pickle = bytes.starts_with(b"PK\x03\x04") || (bytes.len() > 2 && bytes[0] == 0x80 && bytes[1] <= 5);
    // A safetensors header of 0x580 bytes also starts with 0x80 0x05; but then `{` follows its length.
    if pickle && bytes.get(8) != Some(&b'{') {
        return Err("it is a PyTorch pickle (.pth or .bin), which can run code when opened and is never read; \
             use the model.safetensors of the same model"
            .to_owned());
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(
            "it is a Git LFS pointer, not the weights themselves; run `git lfs pull` where it came from".to_owned()
        );
    }
    if bytes.is_empty() {
        return Err("the file is empty".to_owned());
    }
    Ok(())
}

/// All of the network's tensors must be there and nothing else: a file of some other model that happens to
/// have these names is not to be run.
fn check_names(file: &SafeTensors<'_>) -> Result<(), String> {
    let expected: Vec<String> = ENCODER
        .iter()
        .chain(&SCORE)
        .chain(&DESCRIPTOR)
        .flat_map(|layer| [layer.weight_name(), layer.bias_name()])
        .collect();
    let found: HashSet<&str> = file.names().into_iter().collect();
    let missing: Vec<&str> = expected.iter().map(String::as_str).filter(|name| !found.contains(name)).collect();
    let known: HashSet<&str> = expected.iter().map(String::as_str).collect();
    let mut unexpected: Vec<&str> = found.into_iter().filter(|name| !known.contains(name)).collect();
    unexpected.sort_unstable();
    match (missing.is_empty(), unexpected.is_empty()) {
        (true, true) => Ok(()),
        (false, true) => Err(format!("tensors are missing: {}", listed(&missing))),
        (true, false) => Err(format!("tensors that SuperPoint does not have: {}", listed(&unexpected))),
        (false, false) => Err(format!(
            "not SuperPoint with transformers' names: tensors are missing: {}; tensors that it does not have: {}",
            listed(&missing),
            listed(&unexpected)
        )),
    }
}

/// The first names of a list, and how many more there are.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 6;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| printable(name)).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Text from inside a file, safe to print: no control characters, no endless names.
fn printable(text: &str) -> String {
    let clean = text.chars().filter(|c| !c.is_control());
    let mut short: String = clean.clone().take(100).collect();
    if clean.count() > 100 {
        short.push('…');
    }
    short
}

fn convs<const N: usize>(file: &SafeTensors<'_>, layers: &[Layer; N]) -> Result<[Conv; N], String> {
    let convs = layers
        .iter()
        .map(|layer| {
            let shape = [layer.output, layer.input, layer.kernel, layer.kernel];
            let weight = values(file, &layer.weight_name(), &shape)?;
            let weight = Array4::from_shape_vec(shape, weight).map_err(|error| error.to_string())?;
            let bias = Array1::from_vec(values(file, &layer.bias_name(), &[layer.output])?);
            Ok(Conv { weight, bias })
        })
        .collect::<Result<Vec<Conv>, String>>()?;
    convs.try_into().map_err(|_| "internal error: wrong number of layers".to_owned())
}

/// The values of one tensor in f32, once its type, its shape and every value are found right.
fn values(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let tensor = file.tensor(name).map_err(|error| format!("tensor {name}: {error}"))?;
    if tensor.shape() != shape {
        return Err(format!("tensor {name} has shape {:?}, but must have {shape:?}", tensor.shape()));
    }
    let values = to_f32(&tensor)
        .ok_or_else(|| format!("tensor {name} is of type {}, but must be F32, F16 or BF16", tensor.dtype()))?;
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(index) => Err(format!(
            "tensor {name} has {} at {:?}, but every value must be finite",
            values[index],
            position(index, shape)
        )),
    }
}

/// `None` for a number format other than F32, F16 and BF16.
fn to_f32(tensor: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = tensor.data();
    let pairs = || data.chunks_exact(2).map(|bytes| [bytes[0], bytes[1]]);
    match tensor.dtype() {
        Dtype::F32 => Some(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
        Dtype::F16 => Some(pairs().map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect()),
        Dtype::BF16 => Some(pairs().map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect()),
        _ => None,
    }
}

/// The position in an array of `shape` of its `index`-th value in row-major order.
fn position(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut position: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&length| {
            let here = index % length.max(1);
            index /= length.max(1);
            here
        })
        .collect();
    position.reverse();
    position
}

fn provenance(bytes: &[u8]) -> Provenance {
    let metadata = SafeTensors::read_metadata(bytes).ok().and_then(|(_, header)| header.metadata().clone());
    let entry = |key: &str| metadata.as_ref().and_then(|entries| entries.get(key)).map(|value| printable(value));
    Provenance {
        name: entry("name").unwrap_or_default(),
        revision: entry("revision"),
        sha256: sha256(bytes),
        path: None,
    }
}

/// 64 lower-case hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One tensor of a safetensors file, whether the network has it or not.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSummary {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its number format, as safetensors writes it (`F16`).
    pub dtype: String,
    /// Smallest, largest and mean absolute value; `None` for an empty tensor or a number format that is
    /// not F32, F16 or BF16. Not finite if a value is not.
    pub range: Option<[f32; 3]>,
}

/// Lists the tensors of any safetensors file, sorted by name.
///
/// # Errors
///
/// [`Error::WeightsRead`] and [`Error::Weights`] as [`Weights::load`], but only for what makes the file
/// unreadable: which tensors it holds is not checked.
pub fn summarize(path: &Path) -> Result<Vec<TensorSummary>, Error> {
    let bytes = read_bounded(path)?;
    summarize_bytes(&bytes).map_err(|reason| Error::Weights { origin: path.display().to_string(), reason })
}

/// Lists the tensors of the bundled file, sorted by name.
///
/// # Errors
///
/// [`Error::Weights`] when the product was built with a broken file.
pub fn summarize_bundled() -> Result<Vec<TensorSummary>, Error> {
    summarize_bytes(super::BUNDLED)
        .map_err(|reason| Error::Weights { origin: super::BUNDLED_ORIGIN.to_owned(), reason })
}

/// [`summarize`] of a file in memory. The error is the reason without the file's name.
fn summarize_bytes(bytes: &[u8]) -> Result<Vec<TensorSummary>, String> {
    let file = deserialize(bytes)?;
    let mut tensors: Vec<TensorSummary> = file
        .iter()
        .map(|(name, tensor)| TensorSummary {
            name: printable(name),
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype().to_string(),
            range: to_f32(&tensor).as_deref().and_then(range),
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

/// Smallest, largest and mean absolute value. A NaN anywhere makes all three NaN, so that it is seen.
fn range(values: &[f32]) -> Option<[f32; 3]> {
    if values.is_empty() {
        return None;
    }
    if values.iter().any(|value| value.is_nan()) {
        return Some([f32::NAN; 3]);
    }
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mean_abs = values.iter().map(|value| f64::from(value.abs())).sum::<f64>() / values.len() as f64;
    Some([min, max, mean_abs as f32])
}
