#!/usr/bin/env bash
# Every check and test, as CI runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="$PATH:$HOME/.cargo/bin"
say() { echo "==> $*"; }

scripts/setup_ros.bash

say "Formatting"
cargo fmt --all --check

say "Clippy, rustdoc and tests without ROS"
cargo clippy --locked --workspace --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items
cargo test --locked --workspace

# What the Rust side of the C ABI allocates and frees, against the double in C.
if command -v valgrind >/dev/null || scripts/apt_install.bash valgrind; then
    say "The C ABI under valgrind"
    runner="valgrind --quiet --leak-check=full --show-leak-kinds=definite"
    runner+=" --errors-for-leak-kinds=definite --error-exitcode=1"
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$runner" cargo test --locked --package tt-metal-sys --test abi
else
    say "Without valgrind: leaks of the C ABI are only counted by its double"
fi

scripts/build.bash

say "Clippy, rustdoc and tests of the ROS part"
(
    # In the release profile and in colcon's target directory: r2r is already built there.
    SUPERPOINT_WITHOUT_INSTALL=1 . scripts/env.bash
    with_messages() {
        local subcommand=$1
        shift
        scripts/cargo_with_messages.bash build/superpoint_p150 "$PWD/install/superpoint_p150" \
            cargo "$subcommand" --release --locked --package superpoint_node --features ros \
            --target-dir build/superpoint_p150/cargo "$@"
    }
    with_messages clippy --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" with_messages doc --no-deps --document-private-items
    with_messages test --lib ros::
)

# The page is tested in a real browser. Where none can be had (Ubuntu has it as a snap only), that test is skipped and
# says so.
if ! command -v chromedriver >/dev/null && command -v dpkg-query >/dev/null; then
    scripts/apt_install.bash chromium chromium-driver || say "Without a browser: the test of the page is skipped"
fi

say "End-to-end tests over ROS and HTTP"
. scripts/env.bash
python3 -m pytest -q -rs -p no:cacheprovider -W ignore::DeprecationWarning superpoint_node/tests
