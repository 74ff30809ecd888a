# Source this file: `. scripts/env.bash`. It gives a bash in which rclpy, colcon and (once built) this package work:
# with the ROS already sourced, with /opt/ros/jazzy, or with the wheels that `make` put into .ros/.

if [ -z "${BASH_VERSION:-}" ]; then
    echo "env.bash: this file is for bash." >&2
    return 1
fi

_superpoint_env() {
    local root nounset=0 status=0
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || return 1

    # ROS's own set-up scripts read unset variables: a caller with `set -u` must survive them.
    case $- in *u*) nounset=1 ;; esac
    set +u

    if [ -n "$SUPERPOINT_ROS_PREFIX" ] && [ "$SUPERPOINT_ROS_PREFIX" = "$root/.ros" ]; then
        : # sourced before, from this tree
    elif [ -n "$AMENT_PREFIX_PATH" ] && [ -n "$ROS_DISTRO" ] && [ -z "$SUPERPOINT_ROS_PREFIX" ]; then
        : # the caller's own ROS
    elif [ -f /opt/ros/jazzy/setup.bash ]; then
        . /opt/ros/jazzy/setup.bash || status=1
    elif [ -f "$root/.ros/stamp" ]; then
        . "$root/.ros/env.bash" || status=1
    else
        echo "env.bash: no ROS 2 found; run scripts/setup_ros.bash (or any make target) first." >&2
        status=1
    fi

    # The demo's and the tests' Python packages, where ROS is not the wheels that bring their own.
    if [ "$status" -eq 0 ] && [ -z "$SUPERPOINT_ROS_PREFIX" ] && [ -d "$root/.ros-peers/bin" ]; then
        export PATH="$root/.ros-peers/bin:$PATH"
    fi
    if [ "$status" -eq 0 ] && [ -d "$HOME/.cargo/bin" ] && [[ ":$PATH:" != *":$HOME/.cargo/bin:"* ]]; then
        export PATH="$PATH:$HOME/.cargo/bin"
    fi
    if [ "$status" -eq 0 ] && [ -z "$SUPERPOINT_WITHOUT_INSTALL" ] && [ -f "$root/install/local_setup.bash" ]; then
        . "$root/install/local_setup.bash" || status=1
    fi

    [ "$nounset" -eq 0 ] || set -u
    return "$status"
}

_superpoint_env
