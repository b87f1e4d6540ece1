#!/usr/bin/env bash
# Runs the study, or its tests, from any folder.
#
#   ./run_all.sh                     the quick profile: probes, trains the head, decodes and analyses, on the shipped
#                                    backbone; results in runs/quick/figures
#   ./run_all.sh --profile full      everything from scratch, training the backbones too; results in figures/
#   ./run_all.sh test [ARGUMENTS]    ruff, then pytest with these arguments
#
# Options:
#   --profile quick|full|smoke       how much to do (smoke: the least that runs, for tests)
#   --study sudoku|sudoku_paper_strength|esmc_small|antiberty|esmc_300m|all
#                                    which study (default: what the profile says; all: all but esmc_300m, whose
#                                    weights have to be brought)
#   --output DIR                     folder of the figures and statistics.json
#   --fresh                          forget what earlier runs of this profile have left under runs/
#   --threads N                      processor threads (default: all)
#   -h, --help                       this text
#
# An interrupted run, started again, goes on from what was finished. The active conda or virtual environment is used
# where it holds the versions of requirements.lock; else .venv beside this file is made (Python 3.11, some
# minutes and about 2 GB the first time) and reused until the lock changes. Notebooks with their outputs: runs/.

set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
lock=$here/requirements.lock
venv=$here/.venv
stamp=$venv/.maskmi-lock

die() { printf 'run_all.sh: %s\n' "$*" >&2; exit 1; }

right_python() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

# Whether the packages of the lock are there, complete (pip writes RECORD last) and at their versions; else says why not.
suitable() {
    "$1" - "$lock" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, distribution

for line in open(sys.argv[1], encoding="utf-8"):
    name, _, wanted = line.split("#")[0].strip().partition("==")
    if not name:
        continue
    try:
        found = distribution(name)
    except PackageNotFoundError:
        sys.exit(f"{name} is missing")
    if found.version.split("+")[0] != wanted:
        sys.exit(f"{name} is {found.version}, not {wanted}")
    if found.read_text("RECORD") is None:
        sys.exit(f"{name} is only partly installed")
try:
    import numba, torch  # the two that a mixed environment breaks
except Exception as error:
    sys.exit(f"an import fails: {error}")
PYTHON
}

find_python() {
    local candidate
    for candidate in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python}" \
        python3.11 python3 python; do
        if [ -n "$candidate" ] && right_python "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "no Python 3.11 found: install one, or activate an environment that has it (environment.yml)"
}

# Sets python, and says in one line which environment that is.
choose_environment() {
    local base=$1 active why wanted
    for active in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
        if [ -z "$active" ] || [ "$active" -ef "$venv" ]; then
            continue
        fi
        if ! right_python "$active/bin/python"; then
            why="it has no Python 3.11"
        elif why=$(suitable "$active/bin/python" 2>&1); then
            python=$active/bin/python
            printf 'environment: %s (active)\n' "$active"
            return
        fi
        printf 'the active environment %s is not used: %s\n' "$active" "$(tail -n 1 <<<"$why")" >&2
    done
    python=$venv/bin/python
    wanted=$(cat "$lock" "$here/requirements-no-deps.lock" | cksum)
    if [ -x "$python" ] && right_python "$python"; then
        if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
            printf 'environment: %s\n' "$venv"
            return
        fi
        # Made by hand, perhaps. An interrupted installation is found out here, since it lacks a package.
        if [ ! -f "$stamp" ] && suitable "$python" >/dev/null 2>&1; then
            printf '%s\n' "$wanted" >"$stamp"
            printf 'environment: %s (made earlier, complete)\n' "$venv"
            return
        fi
    fi
    printf 'environment: making %s with %s (some minutes)\n' "$venv" "$("$base" --version)"
    install_environment "$base"
    printf '%s\n' "$wanted" >"$stamp"
}

install_environment() {
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check install)
    [ -t 1 ] || pip+=(--quiet) # who watches sees pip's bars
    # The interpreter that the environment was made from, not the environment's own, which --clear removes.
    base=$("$1" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')
    rm -f "$stamp"
    "$base" -m venv --clear "$venv" || die "could not make $venv (on Debian and Ubuntu: apt install python3-venv)"
    printf 'environment: downloading and installing %s packages, 2 GB\n' "$(grep -c '==' "$lock")"
    "${pip[@]}" -r "$lock" || die "could not install requirements.lock into $venv; started again, it is redone"
    "${pip[@]}" --no-deps -r "$here/requirements-no-deps.lock" || die "could not install requirements-no-deps.lock"
    "${pip[@]}" --no-deps --no-build-isolation -e "$here" || die "could not install maskmi itself"
}

case ${1-} in
    -h | --help)
        sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac

export MPLBACKEND=Agg PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
# A forward pass allocates and frees large tensors; jemalloc, told to keep huge pages, halves the time of a pass.
for jemalloc in /usr/lib/*/libjemalloc.so.2 /usr/lib64/libjemalloc.so.2 "${CONDA_PREFIX:-/nonexistent}"/lib/libjemalloc.so.2; do
    if [ -z "${LD_PRELOAD:-}" ] && [ -e "$jemalloc" ]; then
        export LD_PRELOAD=$jemalloc MALLOC_CONF=${MALLOC_CONF:-dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always}
    fi
done
export PYTHONPATH=$here/lib${PYTHONPATH:+:$PYTHONPATH}
base=$(find_python)
if [ "${1-}" != test ]; then
    # Options are read before anything is installed.
    "$base" -m maskmi.run --check-options "$@"
fi
choose_environment "$base"
if [ "${1-}" = test ]; then
    shift
    cd "$here"
    "$python" -m ruff check .
    "$python" -m ruff format --check .
    # All of them: two files at a time, since the notebooks' take half of the time. Some: as the arguments say.
    # One compute thread each, or they wait for one another.
    if [ $# -eq 0 ]; then
        set -- -n 2 --dist loadfile
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    fi
    exec "$python" -m pytest "$@"
fi
exec "$python" -m maskmi.run "$@"
