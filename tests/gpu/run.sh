#!/usr/bin/env bash
# On a machine with a GPU: parity and kernels of all models in both frameworks, the main job, throughput and memory,
# in at most thirteen minutes. Fails where a kernel was not the fast one, or a test or a cell failed.
#
#   OUT=DIR tests/gpu/run.sh
#
# PYTHON    an interpreter that has torch and jax for this GPU (default: python3); other packages that it lacks are
#           installed for this call alone, below a temporary folder
# PIP_ARGS  for pip, say "--no-index --find-links DIR" where no index can be reached
# DEVICE    cuda (default), or cpu to try this script without a GPU
# Leaves in OUT: gpu.parquet (all rows of the runs), environment.json, report.txt, pytest.txt.
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
timeout 270 "$PYTHON" -m pytest -q -p no:cacheprovider --noconftest tests/gpu 2>&1 | tee "$OUT/pytest.txt" || failed=$?

bench() { timeout "$1" "$PYTHON" -P -m bench run --models rotrnn,lru,s4d,s5 --backends torch,jax \
    --device "$BENCH_TEST_DEVICE" --seeds 0 --out "$site/runs" "${@:2}" | tee -a "$OUT/report.txt" || failed=1; }
bench 120 --suite stability --preset quick --depths 2 --jobs 2 --run stability
bench 210 --suite throughput --preset default --tokens 65536 --set length=1024,16384 --set mode=forward,train,decode \
    --set rounds=1 --set budget=1 --set width=0.05 --run throughput
bench 170 --suite memory --preset default --tokens 65536 --set length=1024,16384 --set mode=train --run memory

"$PYTHON" -P - "$site/runs" "$OUT" <<'CODE' || failed=1
import shutil, sys
from pathlib import Path
import bench
runs, out = Path(sys.argv[1]), Path(sys.argv[2])
results = bench.read_results(runs)
results.to_parquet(out / "gpu.parquet")
for path in runs.glob("*/environments/*.json"):
    shutil.copy(path, out / "environment.json")
cells = results.drop_duplicates("cell_id")
by = ["suite", "backend", "model", "kernel", "device", "status"]
print(cells.groupby(by, dropna=False).size().to_string())
torch = cells[(cells["device"] == "cuda") & (cells["backend"] == "torch") & cells["kernel"].notna()]
slow = torch[~torch["kernel"].isin(["triton-scan", "fft", "step"])]
if len(slow):
    sys.exit(f"{len(slow)} cells of torch did not run the fused kernel: {sorted(set(slow['kernel'].dropna()))}")
CODE
exit "$failed"
