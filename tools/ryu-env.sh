#!/usr/bin/env bash
# Make the virtual environment DIR with Ryu 4.34, for `make test-ryu`. Quick when it is up to date.
#
# Only the controller's process runs in it; the tests stay in .venv and are told by a variable:
#   tools/ryu-env.sh .venv-ryu
#   sudo ROCELAB_CONTROLLER_PYTHON=.venv-ryu/bin/python .venv/bin/pytest tests/fabric/test_routing.py
set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: tools/ryu-env.sh DIR" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$(realpath -m "$1")
stamp=$venv/setup-stamp
python=/usr/bin/python3

wanted=$({ "$python" --version; cat "$root/tools/ryu-env.sh" "$root/constraints.txt"; } | sha256sum)
if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

echo "ryu: making $1"
"$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
# Ryu's setup.py uses setuptools.command.easy_install.get_script_args, which 58 removed; and its
# build must see that old setuptools, so no isolated build environment.
"${pip[@]}" install 'setuptools<58' wheel pbr
# The constraint on ovs is Debian's package, which this environment does not see.
"${pip[@]}" install --no-build-isolation 'ryu==4.34' 'ovs==4.0.0' \
    --constraint <(grep -v '^ovs==' "$root/constraints.txt")
PYTHONPATH=$root PYTHONWARNINGS=ignore ROCELAB_SDN=ryu "$venv/bin/python" -c 'import controllers.sdn'
printf '%s\n' "$wanted" >"$stamp"
