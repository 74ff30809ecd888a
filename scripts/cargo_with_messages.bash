#!/usr/bin/env bash
# Usage: cargo_with_messages.bash BUILD_DIR INSTALL_PREFIX COMMAND...
#
# Runs a cargo command that compiles r2r against this package's messages straight from the CMake build tree, where
# they are not yet installed. CMakeLists.txt calls it, and so do the checks (clippy, rustdoc, tests).
set -euo pipefail

build=$(cd "$1" && pwd)
install_prefix=$2
shift 2
package=superpoint_p150

# Every message package that the node's Rust code uses. r2r does not follow nesting, so nested ones are named too.
export IDL_PACKAGE_FILTER="action_msgs;builtin_interfaces;diagnostic_msgs;geometry_msgs;rcl_interfaces;rosgraph_msgs;sensor_msgs;std_msgs;std_srvs;unique_identifier_msgs;$package"

# --- The prefix. r2r reruns when AMENT_PREFIX_PATH changes and at no other time, so a changed message must come
# under a new path, and an unchanged one must keep its path. The name carries the headers' hash for the first, and
# the time for a message that changes and changes back: r2r keeps what it generated per path, but forgets to announce
# the packages it found (and with them simulated time) when it meets an old path again.
index="$build/ament_cmake_index/share/ament_index/resource_index/rosidl_interfaces/$package"
sources=("$build/rosidl_generator_c/$package" "$build/rosidl_typesupport_introspection_c/$package")
hash=$({
    cat "$index"
    find "${sources[@]}" -name '*.h' -print0 | sort -z | xargs -0 sha256sum
} | sha256sum | cut -c1-16)

prefix=$(echo "$build/message_prefix/$hash".*)
if [ ! -f "$prefix/complete" ]; then
    rm -rf "$build/message_prefix"
    prefix="$build/message_prefix/$hash.$(date +%s)"
    mkdir -p "$prefix/lib" "$prefix/include/$package" "$prefix/share/ament_index/resource_index/rosidl_interfaces"
    cp "$index" "$prefix/share/ament_index/resource_index/rosidl_interfaces/"
    for source in "${sources[@]}"; do
        cp -r "$source" "$prefix/include/$package/"
    done
    # Links, so that a relinked library needs no new prefix.
    for library in "$build"/lib"${package}"__*.so; do
        ln -s "$library" "$prefix/lib/"
    done
    touch "$prefix/complete"
fi

# --- The environment: the messages of this build first, and never those of an earlier installation of this package
# (with it on the path, r2r would be built again after the first `source install/setup.bash`).
without_installed() {
    local kept="" entry entries
    IFS=: read -ra entries <<<"$1"
    for entry in "${entries[@]}"; do
        case "$entry" in
            "" | "$install_prefix") ;;
            *) kept+="${kept:+:}$entry" ;;
        esac
    done
    echo "$kept"
}
ament_prefix_path="$prefix:$(without_installed "${AMENT_PREFIX_PATH:-}")"
export AMENT_PREFIX_PATH="$ament_prefix_path"
# r2r's build script runs code that is linked to the message libraries.
export LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# r2r would add this one to AMENT_PREFIX_PATH, which names everything already.
unset CMAKE_PREFIX_PATH

exec "$@"
