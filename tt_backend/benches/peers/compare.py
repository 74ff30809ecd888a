#!/usr/bin/env python3
"""The network of `superpoint bench cpu` beside ONNX Runtime, OpenVINO and PyTorch.

Same weights (those bundled, exported to ONNX here), same frame size, same number of threads, outputs checked against
each other first. Runs are interleaved in rounds (ours, peer, peer, ..., ours, peer, ...), so that whatever else the machine
does falls on all of them; ratios are taken within each round, and their median and spread are what counts.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = ROOT / "weights" / "superpoint_open.safetensors"
ENCODER = [f"encoder.conv_blocks.{block}.conv_{part}" for block in range(4) for part in "ab"]


class SuperPoint(torch.nn.Module):
    """SuperPoint up to its two maps: scores before folding (1, 64, H/8, W/8) and unit descriptors (1, 256, H/8, W/8)."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        super().__init__()

        def conv(name: str) -> torch.nn.Conv2d:
            weight = tensors[f"{name}.weight"].float()
            out, inputs, kernel, _ = weight.shape
            layer = torch.nn.Conv2d(inputs, out, kernel, padding=kernel // 2)
            layer.weight.data, layer.bias.data = weight, tensors[f"{name}.bias"].float()
            return layer

        self.encoder = torch.nn.ModuleList(conv(name) for name in ENCODER)
        self.score = torch.nn.ModuleList(conv(f"keypoint_decoder.conv_score_{part}") for part in "ab")
        self.descriptor = torch.nn.ModuleList(conv(f"descriptor_decoder.conv_descriptor_{part}") for part in "ab")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, layer in enumerate(self.encoder):
            x = layer(x).relu()
            if index in (1, 3, 5):
                x = F.max_pool2d(x, 2)
        scores = self.score[1](self.score[0](x).relu()).softmax(1)[:, :64]
        descriptors = F.normalize(self.descriptor[1](self.descriptor[0](x).relu()), dim=1)
        return scores, descriptors


def make_peers(model: SuperPoint, frame: torch.Tensor, threads: int, folder: Path) -> dict:
    """A function for each peer that runs the network once and returns its two maps as arrays."""
    onnx_file = str(folder / "superpoint.onnx")
    torch.onnx.export(model, (frame,), onnx_file, dynamo=False, opset_version=17, input_names=["image"],
                      output_names=["scores", "descriptors"])
    image = frame.numpy()

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(onnx_file, options, providers=["CPUExecutionProvider"])

    core = openvino.Core()
    latency = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    openvino_f32 = core.compile_model(onnx_file, "CPU", latency | {"INFERENCE_PRECISION_HINT": "f32"})
    openvino_default = core.compile_model(onnx_file, "CPU", latency)

    torch.set_num_threads(threads)

    def pytorch():
        with torch.inference_mode():
            return [output.numpy() for output in model(frame)]

    def run_openvino(compiled):
        result = compiled(image)
        return [result[0], result[1]]

    return {
        "onnxruntime": lambda: session.run(None, {"image": image}),
        "openvino f32": lambda: run_openvino(openvino_f32),
        "openvino default": lambda: run_openvino(openvino_default),
        "pytorch": pytorch,
    }


def check_agreement(peers: dict) -> None:
    """Peers that computed something else would be no peers."""
    reference = peers["pytorch"]()
    for name, run in peers.items():
        # bf16, OpenVINO's default where the CPU has it, is this far off.
        tolerance = 0.05 if name == "openvino default" else 1e-3
        for ours, theirs in zip(reference, run(), strict=True):
            difference = float(np.abs(ours - theirs).max())
            if not difference < tolerance:
                sys.exit(f"{name} differs from PyTorch by {difference}: it does not run the same network")


def check_ours(binary: Path, frame: torch.Tensor, peers: dict, folder: Path) -> None:
    """Nor would we be one."""
    given, dumped = folder / "frame", folder / "maps"
    given.write_bytes(frame.numpy().astype("<f4").tobytes())
    height, width = frame.shape[2:]
    subprocess.run([binary.parent / "examples" / "network_time", "--size", f"{height}x{width}", "--dump", given, dumped], check=True)
    maps = np.frombuffer(dumped.read_bytes(), "<f4")
    scores, descriptors = peers["pytorch"]()
    folded = scores[0].reshape(8, 8, height // 8, width // 8).transpose(2, 0, 3, 1).ravel()
    for mine, theirs in ((maps[:folded.size], folded), (maps[folded.size:], descriptors[0].transpose(1, 2, 0).ravel())):
        difference = float(np.abs(mine - theirs).max())
        if not difference < 1e-4:
            sys.exit(f"superpoint differs from PyTorch by {difference}: it does not run the same network")


def milliseconds(run) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def ours(binary: Path, threads: int, runs: int, size: tuple[int, int]) -> dict:
    command = [binary, "bench", "cpu", "--json", "--threads", threads, "--runs", runs, "--size", f"{size[0]}x{size[1]}",
               "--weights", WEIGHTS]
    return json.loads(subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE).stdout)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def compare(args, threads: int, model: SuperPoint, frame: torch.Tensor, folder: Path) -> dict:
    peers = make_peers(model, frame, threads, folder)
    check_agreement(peers)
    check_ours(args.binary, frame, peers, folder)
    rounds: dict[str, list[float]] = {name: [] for name in ("ours", *peers)}
    postprocess = []
    for number in range(args.rounds):
        print(f"\r{threads} thread(s): round {number + 1} of {args.rounds} ", end="", file=sys.stderr, flush=True)
        report = ours(args.binary, threads, args.runs, args.size)
        rounds["ours"].append(report["network_ms"]["median"])
        postprocess.append(report["postprocess_ms"]["median"])
        for name, run in peers.items():
            run()  # after another peer had the caches
            rounds[name].append(statistics.median(milliseconds(run) for _ in range(args.runs)))
    print(file=sys.stderr)

    mine = rounds.pop("ours")
    print(f"\n{args.size[0]}x{args.size[1]}, {threads} thread(s), {args.rounds} rounds of {args.runs} runs, milliseconds:\n")
    print("| | median | min | max | ours / it: median | min | max |")
    print("|---|---|---|---|---|---|---|")
    print(f"| ours | {statistics.median(mine):.1f} | {min(mine):.1f} | {max(mine):.1f} | | | |")
    result = {"threads": threads, "size": args.size, "ours_ms": mine, "peers_ms": rounds, "ratio": {}}
    for name, times in rounds.items():
        ratios = [a / b for a, b in zip(mine, times, strict=True)]
        result["ratio"][name] = statistics.median(ratios)
        print(f"| {name} | {statistics.median(times):.1f} | {min(times):.1f} | {max(times):.1f} | "
              f"{statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |")
    # Against whichever peer was the fastest of each round: the number that a user who may choose would see.
    fastest = [mine[i] / min(times[i] for times in rounds.values()) for i in range(len(mine))]
    result["ratio_fastest"] = statistics.median(fastest)
    print(f"| fastest of the round | | | | {statistics.median(fastest):.2f} | {min(fastest):.2f} | {max(fastest):.2f} |")
    share = 100 * statistics.median(p / n for p, n in zip(postprocess, mine, strict=True))
    print(f"\nPost-processing: {statistics.median(postprocess):.2f} ms, {share:.1f} % of the network's time")
    return result


def print_sizes(args, threads: int) -> None:
    """Ours alone: whether the cost follows the pixels."""
    sizes = [(240, 320), (480, 640), (720, 960), (960, 1280)]
    times = {size: [] for size in sizes}
    for _ in range(args.rounds):
        for size in sizes:
            times[size].append(ours(args.binary, threads, args.runs, size)["network_ms"]["median"])
    print(f"\nOther sizes, {threads} thread(s), {args.rounds} rounds of {args.runs} runs, the sizes in turn:\n")
    print("| | median: ms | min | max | ns a pixel |")
    print("|---|---|---|---|---|")
    for (height, width), taken in times.items():
        middle = statistics.median(taken)
        print(f"| {height}x{width} | {middle:.1f} | {min(taken):.1f} | {max(taken):.1f} | {1e6 * middle / (height * width):.0f} |")


def main() -> None:
    def frame_size(text: str) -> tuple[int, int]:
        height, width = text.split("x")
        return int(height), int(width)

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "superpoint")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}, reverse=True))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runs", type=int, default=5, help="of each per round")
    parser.add_argument("--size", type=frame_size, default=(480, 640), metavar="HxW")
    parser.add_argument("--json", type=Path, help="also write all times there")
    args = parser.parse_args()

    model = SuperPoint(load_file(WEIGHTS)).eval()
    frame = torch.rand(1, 1, *args.size, generator=torch.Generator().manual_seed(1))
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} CPUs; onnxruntime {onnxruntime.__version__}, "
          f"openvino {openvino.__version__.split('-')[0]}, torch {torch.__version__}; {time.strftime('%Y-%m-%d')}")
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(args, threads, model, frame, Path(folder)) for threads in args.threads]
    for threads in args.threads:
        print_sizes(args, threads)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
