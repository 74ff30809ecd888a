#!/usr/bin/env bash
# Usage: apt_install.bash PACKAGE...
#
# Installs those of the Debian packages that are missing, as root or with sudo, and without asking. Says on standard
# error, in a sentence, why it could not.
set -euo pipefail

fail() {
    echo "apt: $*" >&2
    exit 1
}

missing=()
for package in "$@"; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "==> Installing Debian packages: ${missing[*]}"
if [ "$(id -u)" -eq 0 ]; then
    as_root=(env DEBIAN_FRONTEND=noninteractive)
elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n env DEBIAN_FRONTEND=noninteractive)
else
    fail "these packages need root to install; run: sudo apt-get install ${missing[*]}"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    fail "apt-get could not install ${missing[*]} (is the network there? its last lines are above)."
fi
