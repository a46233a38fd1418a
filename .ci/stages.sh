# Sourced by .ci/run and .ci/all: stages run in order, the first failure ends the run by name, and a table with the
# seconds of each stage closes it. CORPORA is the folder of corpora, PYTHON the interpreter, as for make.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
SCRATCH=$(mktemp -d)
TIMES=()
PIP="python -m pip --quiet --disable-pip-version-check"
COMMIT=$(git rev-parse HEAD)
export PYTHON SCRATCH PIP COMMIT HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
trap 'code=$?; rm -rf "$SCRATCH"; finish "$code"' EXIT

# report CODE: the seconds of each stage, also of a run that failed
report() {
  printf '==== %7s  stage\n' seconds
  [ ${#TIMES[@]} -eq 0 ] || printf '==== %7d  %s\n' "${TIMES[@]}"
  printf '==== %7d  in all: %s\n' "$SECONDS" "$([ "$1" -eq 0 ] && echo passed || echo FAILED)"
}

# stage NAME SCRIPT: runs SCRIPT in a shell of its own, so that any command that fails in it fails the stage
stage() {
  local name=$1 start=$SECONDS code=0
  echo "==== $name"
  bash -euo pipefail -c "$2" 2>&1 || code=$?
  TIMES+=("$((SECONDS - start))" "$name")
  if [ "$code" -ne 0 ]; then
    echo "==== FAILED: $name (exit code $code) after $((SECONDS - start)) s" >&2
    exit 1
  fi
  echo "==== $name: $((SECONDS - start)) s"
}
