#!/bin/sh
# The venv in which SGLang runs; never ours, since its torch pin is not ours. Called by `make sglang` and `make sglang-cpu`.
#   make_venv.sh gpu|cpu FOLDER PYTHON
# gpu: what pip resolves for the supported range. cpu: pinned versions without CUDA packages (cpu_requirements.txt), and
# stubs for two packages that have no CPU build. What is complete is not made again; FOLDER/.made says what it was made of.
set -eu
kind=$1 venv=$2 python=$3
here=$(cd "$(dirname "$0")" && pwd)
range='sglang>=0.5.23,<0.6'
torch='torch==2.13.0'

fail() { echo "make_venv: $*" >&2; exit 1; }

made="$kind $range $torch $(cat "$here/cpu_requirements.txt" "$here/cpu_stubs.py" "$0" | cksum)"
if [ "$(cat "$venv/.made" 2>/dev/null)" = "$made" ]; then exit 0; fi

"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' ||
    fail "SGLang needs Python 3.10 to 3.13, $python is none; try: make sglang PYTHON=python3.12"
rm -f "$venv/.made"
"$python" -m venv --clear "$venv" || fail "$python -m venv failed (Debian and Ubuntu: install python3-venv)"
pip() {
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@" ||
        fail "pip could not install $*; the message above says why (3 GB of disk and the package index are needed)"
}

case $kind in
gpu)
    echo "installing SGLang into $venv (several GB) …"
    pip "$range"
    ;;
cpu)
    echo "installing SGLang for the CPU into $venv (3 GB, some minutes) …"
    pip "$torch"
    pip --no-deps -r "$here/cpu_requirements.txt"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    [ -d "$site" ] || fail "$venv has no site-packages"
    cp "$here/cpu_stubs.py" "$site/astraflow_cpu_stubs.py"
    echo 'import astraflow_cpu_stubs; astraflow_cpu_stubs.install("torchvision", "sgl_kernel")' > "$site/astraflow_cpu_stubs.pth"
    SGLANG_USE_CPU_ENGINE=1 "$venv/bin/python" -c 'import sglang.launch_server' || fail "SGLang does not import in $venv"
    ;;
*) fail "usage: make_venv.sh gpu|cpu FOLDER PYTHON" ;;
esac
echo "$made" > "$venv/.made"
