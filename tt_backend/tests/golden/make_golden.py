#!/usr/bin/env python3
"""Makes the fixtures that `tests/golden.rs` compares this crate with.

The reference is `transformers`' `SuperPointForKeypointDetection` on PyTorch for the network and for
`postprocess: upstream`, Pillow for the resize, and `package_keypoints` below for `postprocess: package`.
README.md says how to run it and what is in each file.
"""

import argparse
import hashlib
import importlib.metadata
import pathlib
import sys

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers import SuperPointConfig, SuperPointForKeypointDetection
from transformers.models.superpoint.image_processing_superpoint import SuperPointImageProcessor

HERE = pathlib.Path(__file__).resolve().parent
BUNDLED = HERE.parents[2] / "weights" / "superpoint_open.safetensors"

LAYERS = [  # name, channels in, channels out, kernel: the order in which random_weights counts them
    ("encoder.conv_blocks.0.conv_a", 1, 64, 3),
    ("encoder.conv_blocks.0.conv_b", 64, 64, 3),
    ("encoder.conv_blocks.1.conv_a", 64, 64, 3),
    ("encoder.conv_blocks.1.conv_b", 64, 64, 3),
    ("encoder.conv_blocks.2.conv_a", 64, 128, 3),
    ("encoder.conv_blocks.2.conv_b", 128, 128, 3),
    ("encoder.conv_blocks.3.conv_a", 128, 128, 3),
    ("encoder.conv_blocks.3.conv_b", 128, 128, 3),
    ("keypoint_decoder.conv_score_a", 128, 256, 3),
    ("keypoint_decoder.conv_score_b", 256, 65, 1),
    ("descriptor_decoder.conv_descriptor_a", 128, 256, 3),
    ("descriptor_decoder.conv_descriptor_b", 256, 256, 1),
]

# Sizes (width, height) of the noise pictures for the resize to 640x480: smaller, larger, odd, a few that
# change one side only, and the degenerate ones.
RESIZE_SIZES = [
    (640, 480), (1600, 900), (1280, 720), (1920, 1080), (2448, 2048), (320, 240), (641, 479), (333, 777), (639, 480),
    (640, 481), (640, 960), (1281, 480), (1, 1), (2, 2), (1, 50), (1000, 1), (7, 5), (5000, 3),
]
# A stride that visits every column and every position in an 8x8 cell without storing every value.
STRIDE = 37


def splitmix64(seed: int, count: int) -> np.ndarray:
    """The first `count` outputs of SplitMix64 from state `seed`."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_weights(seed: int) -> dict[str, np.ndarray]:
    """Weights that `tests/golden.rs` makes again bit by bit, so that 5 MB need not be stored.

    Tensor number t (weight 2i and bias 2i + 1 of layer i) takes SplitMix64 from seed + t * 2**32. The top 24
    bits of an output make an integer in [-2**23, 2**23). A kernel has its mean over (in, kh, kw) subtracted,
    so that it answers to structure and not to brightness, and is scaled as He et al. for a uniform
    distribution; the last score layer three times that, so that the softmax has clear peaks.
    """
    tensors = {}
    for index, (name, cin, cout, kernel) in enumerate(LAYERS):
        fan_in = cin * kernel * kernel
        draw = lambda tensor, count: (splitmix64(seed + (tensor << 32), count) >> np.uint64(40)).astype(np.int64) - 2**23
        weight = draw(2 * index, cout * fan_in).reshape(cout, fan_in)
        # Integers below 2**53: the sum and so the mean are the same in every order of summation.
        centred = weight.astype(np.float64) - weight.sum(axis=1, keepdims=True).astype(np.float64) / fan_in
        gain = 3.0 if name.endswith("conv_score_b") else 1.0
        scale = gain * np.sqrt(6.0 / fan_in) / 2**23
        tensors[f"{name}.weight"] = (centred * scale).astype(np.float32).reshape(cout, cin, kernel, kernel)
        tensors[f"{name}.bias"] = (draw(2 * index + 1, cout).astype(np.float64) * (0.05 / 2**23)).astype(np.float32)
    return tensors


def noise(width: int, height: int, seed: int) -> np.ndarray:
    """A picture of independent bytes, which shows every difference between two resizes."""
    return (splitmix64(seed, width * height) >> np.uint64(56)).astype(np.uint8).reshape(height, width)


def model_with(tensors: dict[str, np.ndarray]) -> SuperPointForKeypointDetection:
    """`transformers`' model with these weights; every tensor must be taken."""
    model = SuperPointForKeypointDetection(SuperPointConfig()).eval()
    state = {name: torch.from_numpy(value.astype(np.float32)) for name, value in tensors.items()}
    model.load_state_dict(state, strict=True)
    return model


def maps(model: SuperPointForKeypointDetection, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores before NMS [h, w], and the normalised descriptor map [256, h / 8, w / 8]."""
    pixels = torch.from_numpy(frame)[None, None]
    with torch.no_grad():
        encoded = model.encoder(pixels).last_hidden_state
        model.keypoint_decoder.nms_radius = 0  # its NMS of radius 0 changes nothing
        scores = model.keypoint_decoder._get_pixel_scores(encoded)[0]
        decoder = model.descriptor_decoder
        descriptors = decoder.conv_descriptor_b(decoder.relu(decoder.conv_descriptor_a(encoded)))
        descriptors = torch.nn.functional.normalize(descriptors, p=2, dim=1)[0]
    return scores.numpy(), descriptors.numpy()


def sample(descriptor_map: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Descriptors [n, 256] at points (x, y), by `transformers`' own function."""
    decoder = SuperPointForKeypointDetection(SuperPointConfig()).descriptor_decoder
    points = torch.from_numpy(points.astype(np.float32))[None]
    return decoder._sample_descriptors(points, torch.from_numpy(descriptor_map)[None], 8)[0].T.numpy()


def by_score(points: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Score descending, then row, then column: the order of this crate in every mode."""
    order = np.lexsort((points[:, 0], points[:, 1], -scores))
    return points[order].astype(np.uint16), scores[order]


def upstream_keypoints(model, frame, params) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keypoints (x, y), scores and descriptors of the whole model, as `transformers` gives them."""
    decoder = model.keypoint_decoder
    decoder.nms_radius = params["nms_radius"]
    decoder.keypoint_threshold = params["keypoint_threshold"]
    decoder.border_removal_distance = params["border_removal_distance"]
    decoder.max_keypoints = -1  # the cut is taken by score here, so that ties are not left to torch.topk
    pixels = torch.from_numpy(frame)[None, None].expand(1, 3, -1, -1)
    with torch.no_grad():
        output = model(pixels)
    height, width = frame.shape
    exact = output.keypoints[0].numpy() * np.array([width, height])
    points = np.rint(exact).astype(np.int64)
    scores, descriptors = output.scores[0].numpy(), output.descriptors[0].numpy()
    order = np.lexsort((points[:, 0], points[:, 1], -scores))
    truncated = int((exact.astype(np.float32).astype(np.int32) != points).any(axis=1).sum())
    print(f"    {truncated} of {len(points)} keypoints are moved by a pixel when transformers truncates x / W * W")
    return points[order].astype(np.uint16), scores[order], descriptors[order]


def window_max(scores: np.ndarray, radius: int) -> np.ndarray:
    """The maximum over (2 radius + 1)^2 pixels around each, without anything beyond the edges."""
    padded = np.pad(scores, radius, constant_values=-np.inf)
    size = 2 * radius + 1
    rows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=0).max(axis=-1)
    return np.lib.stride_tricks.sliding_window_view(rows, size, axis=1).max(axis=-1)


def package_keypoints(scores: np.ndarray, params) -> tuple[np.ndarray, np.ndarray]:
    """`postprocess: package`: single-pass NMS, threshold, all four borders, order by score."""
    kept = (scores == window_max(scores, params["nms_radius"])) & (scores > np.float32(params["keypoint_threshold"]))
    border, (height, width) = params["border_removal_distance"], scores.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)[None, :]
    kept &= (rows >= border) & (rows < height - border) & (columns >= border) & (columns < width - border)
    ys, xs = np.nonzero(kept)
    return by_score(np.stack([xs, ys], axis=1), scores[ys, xs])


def upstream_from_scores(scores: np.ndarray, params) -> tuple[np.ndarray, np.ndarray]:
    """`postprocess: upstream` written from its definition in README.md; must agree with `transformers`."""
    radius = params["nms_radius"]
    survivors = scores == window_max(scores, radius)
    for _ in range(2):
        suppressed = window_max(survivors.astype(np.float32), radius) > 0
        rest = np.where(suppressed, np.float32(0), scores)
        survivors |= (rest == window_max(rest, radius)) & ~suppressed
    kept = np.where(survivors, scores, 0) > np.float32(params["keypoint_threshold"])
    border, (height, width) = params["border_removal_distance"], scores.shape
    rows, columns = np.arange(height)[:, None], np.arange(width)[None, :]
    kept &= (rows >= border) & (rows < 8 * height - border) & (columns >= border) & (columns < 8 * width - border)
    ys, xs = np.nonzero(kept)
    return by_score(np.stack([xs, ys], axis=1), scores[ys, xs])


def must_be_stable(scores: np.ndarray, params) -> None:
    """Fails if rounding could change the keypoints: then another implementation could not be compared exactly."""
    rng = np.random.default_rng(0)
    for extract in (package_keypoints, upstream_from_scores):
        reference = {tuple(point) for point in extract(scores, params)[0]}
        for _ in range(8):
            moved = (scores * (1 + 1e-5 * rng.uniform(-1, 1, scores.shape))).astype(np.float32)
            difference = reference ^ {tuple(point) for point in extract(moved, params)[0]}
            if difference:
                sys.exit(f"keypoints {sorted(difference)[:5]} hang on the fifth digit; use another picture or seed")


def make_case(path, model, frame, params, every, points_of_descriptors=None) -> None:
    """Writes one case: maps at a stride, keypoints in both modes, and the descriptors of every `every`-th."""
    scores, descriptor_map = maps(model, frame)
    must_be_stable(scores, params)
    points, point_scores, descriptors = upstream_keypoints(model, frame, params)
    check_points, check_scores = upstream_from_scores(scores, params)
    assert np.array_equal(points, check_points) and np.allclose(point_scores, check_scores, atol=1e-7), "definition"
    package, package_scores = package_keypoints(scores, params)
    chosen = points_of_descriptors(points) if points_of_descriptors else np.arange(0, len(points), every)
    assert np.allclose(sample(descriptor_map, points[chosen]), descriptors[chosen], atol=1e-5)
    cells = descriptor_map.reshape(256, -1).T[::STRIDE]
    save_file(
        {
            "scores": scores.reshape(-1)[::STRIDE].astype(np.float32),
            "cells": np.ascontiguousarray(cells).astype(np.float16),
            "upstream_points": points,
            "upstream_scores": point_scores.astype(np.float32),
            "package_points": package,
            "package_scores": package_scores.astype(np.float32),
            "descriptor_index": chosen.astype(np.uint32),
            "descriptors": descriptors[chosen].astype(np.float16),
        },
        path,
        metadata={
            "height": str(frame.shape[0]),
            "width": str(frame.shape[1]),
            "stride": str(STRIDE),
            **{name: str(value) for name, value in params.items()},
        },
    )
    print(
        f"    scores {scores.min():.2e} to {scores.max():.3f}, {len(points)} keypoints upstream, {len(package)} package, "
        f"{len(chosen)} descriptors, {path.stat().st_size} bytes"
    )


def make_resizes(path) -> None:
    """Pillow's resize of noise to 640x480, at a stride."""
    tensors = {}
    for width, height in RESIZE_SIZES:
        picture = Image.fromarray(noise(width, height, seed=width * 65536 + height))
        resized = np.asarray(picture.resize((640, 480), Image.Resampling.BILINEAR))
        tensors[f"{width}x{height}"] = np.ascontiguousarray(resized.reshape(-1)[::STRIDE])
    # 16 bits: Pillow resizes floating point pictures without rounding between its two passes.
    for width, height in [(1280, 720), (320, 240)]:
        values = (splitmix64(width * 65536 + height, width * height) >> np.uint64(48)).astype(np.uint16)
        picture = Image.fromarray((values.astype(np.float32) / 65535).reshape(height, width))
        resized = np.asarray(picture.resize((640, 480), Image.Resampling.BILINEAR))
        tensors[f"{width}x{height}_16bit"] = np.ascontiguousarray(resized.reshape(-1)[::STRIDE])
    save_file(tensors, path, metadata={"stride": str(STRIDE)})
    print(f"    {len(tensors)} pictures, {path.stat().st_size} bytes")


def compare_processor(rgb: np.ndarray) -> None:
    """Prints how far `transformers`' own image processor is from Pillow's resize of the first channel."""
    processor = SuperPointImageProcessor()
    pictures = {"photo 512x512": rgb, "noise 1600x900": np.stack([noise(1600, 900, seed) for seed in (1, 2, 3)], axis=-1)}
    for name, picture in pictures.items():
        values = processor(Image.fromarray(picture), return_tensors="pt").pixel_values[0, 0].numpy() * 255
        pillow = np.asarray(Image.fromarray(picture[..., 0]).resize((640, 480), Image.Resampling.BILINEAR)).astype(np.float32)
        difference = np.abs(values - pillow)
        print(
            f"    {name}: processor ({processor.resample!r}) differs from Pillow by at most {difference.max():.3f} grey "
            f"levels, by more than half a level at {(difference > 0.5).mean():.2%} of the pixels"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, default=BUNDLED, help="the bundled weights")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "torchvision", "numpy", "pillow", "scikit-image", "safetensors")}
    print(", ".join(f"{name} {version}" for name, version in versions.items()))

    import skimage.data

    # Mirrored: as it is, two neighbouring scores are so equal that rounding decides between them.
    rgb = np.ascontiguousarray(skimage.data.astronaut()[:, ::-1])
    square = Image.fromarray(np.ascontiguousarray(rgb[..., 0]))
    square.save(HERE / "astronaut_512x512.png", optimize=True)
    frame_image = square.resize((640, 480), Image.Resampling.BILINEAR)
    frame_image.save(HERE / "astronaut_640x480.png", optimize=True)
    frame = np.asarray(frame_image).astype(np.float32) / 255
    small = np.asarray(square.resize((320, 240), Image.Resampling.BILINEAR)).astype(np.float32) / 255
    tiny = np.ascontiguousarray(np.asarray(frame_image)[100:148, 240:304]).astype(np.float32) / 255

    defaults = {"nms_radius": 4, "keypoint_threshold": 0.005, "border_removal_distance": 4}
    everything = {"nms_radius": 0, "keypoint_threshold": 0.0, "border_removal_distance": 0}
    bundled = model_with(load_file(arguments.weights))
    random = model_with(random_weights(seed=2))

    print("bundled_640x480: bundled weights, astronaut_640x480.png")
    make_case(HERE / "bundled_640x480.safetensors", bundled, frame, defaults, every=6)
    print("bundled_320x240: bundled weights, astronaut_512x512.png resized to 320x240 by Pillow")
    make_case(HERE / "bundled_320x240.safetensors", bundled, small, defaults, every=3)
    print("random_640x480: random weights, astronaut_640x480.png")
    make_case(HERE / "random_640x480.safetensors", random, frame, {**defaults, "keypoint_threshold": 0.02}, every=12)

    def edge(points):
        x, y = points[:, 0].astype(int), points[:, 1].astype(int)
        return np.flatnonzero((x < 1) | (x > 62) | (y < 1) | (y > 46) | ((x % 9 == 3) & (y % 5 == 3)))

    print("edges_64x48: random weights, every pixel of a 64x48 part of astronaut_640x480.png is a keypoint")
    make_case(HERE / "edges_64x48.safetensors", random, tiny, everything, every=1, points_of_descriptors=edge)
    print("resize: Pillow's bilinear resize of noise to 640x480")
    make_resizes(HERE / "resize.safetensors")
    print("transformers' image processor against Pillow:")
    compare_processor(rgb)
    for path in sorted(HERE.glob("*.png")) + sorted(HERE.glob("*.safetensors")):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}  {path.name}  {path.stat().st_size}")


if __name__ == "__main__":
    main()
