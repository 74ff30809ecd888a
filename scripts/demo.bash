#!/usr/bin/env bash
# The main job on real input: builds everything, then plays a photo sequence into the node.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup_ros.bash
scripts/build.bash

echo "==> Playing a photo sequence into the node"
. scripts/env.bash
# This machine only, and apart from any other ROS system on it.
export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST ROS_DOMAIN_ID=$((1 + RANDOM % 100))
# The frames are larger than the shared memory that Fast DDS has by default.
export FASTRTPS_DEFAULT_PROFILES_FILE=$PWD/config/fastdds.xml
python3 demo/demo.py --out out
