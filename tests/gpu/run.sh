#!/usr/bin/env bash
# On a machine with a GPU: parity of all models in both frameworks, then the main job, in at most six minutes.
#
#   OUT=DIR tests/gpu/run.sh
#
# PYTHON    an interpreter that has torch and jax for this GPU (default: python3); other packages that it lacks are
#           installed for this call alone, below a temporary folder
# PIP_ARGS  for pip, say "--no-index --find-links DIR" where no index can be reached
# DEVICE    cuda (default), or cpu to try this script without a GPU
# Leaves in OUT: gpu.parquet (all rows of the run), environment.json, report.txt, pytest.txt.
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:?name a folder for the results: OUT=DIR}
export BENCH_TEST_DEVICE=${DEVICE:-cuda}
PIP_ARGS=${PIP_ARGS:-}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
mkdir -p "$OUT"
export BENCH_CACHE="$site/cache" PYTHONPATH="$site" PYTHONUNBUFFERED=1

missing=$("$PYTHON" - <<'CODE'
import importlib.util
names = {"pyarrow": "pyarrow", "safetensors": "safetensors", "pandas": "pandas", "scipy": "scipy", "typer": "typer",
         "rich": "rich", "flax": "flax", "optax": "optax", "pytest": "pytest", "hatchling": "hatchling"}
print(*(package for module, package in names.items() if importlib.util.find_spec(module) is None))
CODE
)
# shellcheck disable=SC2086
if [ -n "$missing" ]; then "$PYTHON" -m pip install -q $PIP_ARGS --target "$site" $missing; fi
# shellcheck disable=SC2086
"$PYTHON" -m pip install -q --no-deps --no-build-isolation $PIP_ARGS --target "$site" .

failed=0  # the run is wanted even where a test fails
timeout 160 "$PYTHON" -m pytest -q -p no:cacheprovider --noconftest tests/gpu 2>&1 | tee "$OUT/pytest.txt" || failed=$?
timeout 180 "$PYTHON" -P -m bench run --suite stability --models rotrnn,lru,s4d,s5 --backends torch,jax \
    --device "$BENCH_TEST_DEVICE" --preset quick --depths 2 --seeds 0 --jobs 2 --out "$site/runs" --run gpu | tee "$OUT/report.txt"
"$PYTHON" -P - "$site/runs/gpu" "$OUT" <<'CODE'
import shutil, sys
from pathlib import Path
import bench
run, out = Path(sys.argv[1]), Path(sys.argv[2])
results = bench.read_results(run)
results.to_parquet(out / "gpu.parquet")
for path in (run / "environments").glob("*.json"):
    shutil.copy(path, out / "environment.json")
print(results.groupby(["backend", "model", "kernel", "device", "status"], dropna=False)["duration_s"].max().to_string())
CODE
exit "$failed"
