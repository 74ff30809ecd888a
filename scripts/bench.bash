#!/usr/bin/env bash
# Measures the CPU network: side by side with other libraries, layer by layer, and with criterion.
# Sets up what it needs in .bench/ (git-ignored, about 6 GB, most of it PyTorch); the second run starts measuring at once.
# Arguments go to the side-by-side program: scripts/bench.bash --rounds 3 --threads 2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="$PATH:$HOME/.cargo/bin"
say() { echo "==> $*"; }
fail() {
    echo "bench: $*" >&2
    exit 1
}

command -v cargo >/dev/null || fail "cargo is missing; install Rust 1.89 or newer from https://rustup.rs"
command -v python3 >/dev/null || fail "python3 is missing; install it with its venv module"

requirements=tt_backend/benches/peers/requirements.txt
if ! cmp -s "$requirements" .bench/installed.txt; then
    say "Python environment for the peers: .bench/venv (once, about 3 GB to download)"
    python3 -m venv --clear .bench/venv || fail "python3 cannot make a virtual environment; install python3-venv"
    .bench/venv/bin/pip install --quiet --requirement "$requirements" \
        || fail "pip could not install $requirements; is there a network connection?"
    cp "$requirements" .bench/installed.txt
fi

say "Building"
cargo build --release --locked --bin superpoint
cargo build --release --locked --package tt_backend --example network_time
target="$(cargo metadata --format-version 1 --no-deps --locked |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')"

say "Side by side with ONNX Runtime, OpenVINO and PyTorch"
.bench/venv/bin/python tt_backend/benches/peers/compare.py --binary "$target/release/superpoint" "$@"

say "Our layers, one thread"
"$target/release/examples/network_time" --layers --threads 1 --runs 15
say "Our layers, all cores"
"$target/release/examples/network_time" --layers --runs 15

say "Criterion"
cargo bench --locked --package tt_backend
