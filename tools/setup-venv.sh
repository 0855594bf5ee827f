#!/usr/bin/env bash
# Make or update the virtual environment .venv. Does nothing, quickly, when it is up to date.
#
# It sees the system's packages, because Debian's mininet is one of them.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/setup-stamp
python=/usr/bin/python3

exec 9<. # one set-up at a time in this directory
flock 9

wanted=$(
    {
        "$python" --version
        cat setup.py constraints.txt tools/setup-venv.sh
    } | sha256sum
)
if [[ -x $venv/bin/rocelab && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi
if [[ -d $venv && ! -w $venv ]]; then
    echo "setup: $venv is out of date and belongs to another user; run: sudo make setup" >&2
    exit 1
fi

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "setup: making $venv"
    "$python" -m venv --clear --system-site-packages "$venv"
fi
echo "setup: installing Python packages into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable '.[test]'
printf '%s\n' "$wanted" >"$stamp"
