#!/usr/bin/env bash
# Builds and installs the package with colcon into build/ and install/ of this tree.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Without this tree's own installation on the paths: a build must not depend on the one before it.
SUPERPOINT_WITHOUT_INSTALL=1 . scripts/env.bash

cmake_args=(-DCMAKE_BUILD_TYPE=Release)
if [ -n "${SUPERPOINT_ROS_PREFIX:-}" ]; then
    # CMake would otherwise find the system's Python, which has no rosidl.
    cmake_args+=("-DPython3_EXECUTABLE=$SUPERPOINT_ROS_PREFIX/bin/python")
fi

echo "==> Building messages and node with colcon"
log="$root/log/build.txt"
mkdir -p "$root/log"
if ! colcon build --packages-select superpoint_p150 --event-handlers console_direct- console_start_end- summary- \
    --cmake-args "${cmake_args[@]}" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "build: colcon build failed; its last lines are above, all of them in $log" >&2
    exit 1
fi
