#!/usr/bin/env bash
# Install the Debian packages that RoCELab needs. Does nothing, quickly, when none is missing.
#
# Only files are wanted: RoCELab starts an Open vSwitch of its own, inside the namespaces of each
# run. Services of freshly installed packages are therefore neither started now nor at boot.
set -euo pipefail
cd "$(dirname "$0")"

mapfile -t wanted < debian-packages.txt
installed=$(dpkg-query --show --showformat='${Package} ${db:Status-Status}\n' "${wanted[@]}" \
    2>/dev/null | awk '$2 == "installed" { print $1 }' || true)
missing=()
for package in "${wanted[@]}"; do
    grep --quiet --line-regexp --fixed-strings -- "$package" <<<"$installed" || missing+=("$package")
done
((${#missing[@]})) || exit 0

if ((EUID != 0)); then
    echo "setup: Debian packages are missing; run: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; install by hand what provides: ${missing[*]}" >&2
    exit 1
fi

# policy-rc.d is how Debian lets an administrator forbid maintainer scripts to start services.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
if ! { apt-get update && apt-get install --yes --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed; the whole log is $log" >&2
    exit 1
fi
rm -f "$log"

# Each service has its package's name. Those that were installed before stay as they are.
for package in "${missing[@]}"; do
    [[ $package == openvswitch-switch || $package == iperf3 ]] || continue
    if command -v systemctl >/dev/null; then
        systemctl disable --quiet "$package" 2>/dev/null || true # not every one has a unit
    elif compgen -G "/etc/rc?.d/S??$package" >/dev/null; then
        update-rc.d "$package" disable
    fi
done
