"""The fused Triton kernels compile for a GPU without one, and refuse what they cannot take."""

import os

import pytest
import torch

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from bench.backends.torch import triton_scan  # noqa: E402


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("lookback", [False, True])
@pytest.mark.parametrize("adjoint", [False, True])
def test_the_kernel_compiles_for_an_h200(adjoint, lookback, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {
        "ADJOINT": adjoint,
        "LOOKBACK": lookback,
        "LOG_STEPS": triton_scan.STEPS.bit_length() - 1,
        "LOG_GROUP": triton_scan.GROUP.bit_length() - 1,
        "BLOCK": triton_scan.BLOCK,
    }
    if not adjoint:
        constants |= dict.fromkeys(["x_re", "x_im", "da_re", "da_im", "ds_re", "ds_im"])
    if not lookback:
        constants |= dict.fromkeys(["slot_re", "slot_im", "flags"])
    numbers = {"length", "chunks", "blocks", "lanes", "n", "v_time", "v_batch", "x_time", "x_batch"}
    rows = {"v_re", "v_im", "out_re", "out_im", "x_re", "x_im"}
    types = dict.fromkeys(numbers, "i32") | dict.fromkeys(rows, "*bf16") | {"flags": "*i32"}
    names = triton_scan._linear_scan.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
    source = ASTSource(fn=triton_scan._linear_scan, signature=signature, constexprs=constants)
    options = {"num_warps": triton_scan.BLOCK // 32, "enable_fp_fusion": True}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert built.asm["cubin"]
    assert ("atom.global" in built.asm["ptx"]) == lookback  # programs that do not wait share nothing


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_are_refused(dtype):
    allowed = "float32 or bfloat16"
    with pytest.raises(ValueError, match=f"takes v in {allowed}, not in {str(dtype).removeprefix('torch.')}"):
        triton_scan.states(ones(5), ones(4, 2, 5, dtype=dtype), ones(2, 5))
    with pytest.raises(ValueError, match=f"takes g in {allowed}"):
        triton_scan.adjoint(ones(5), ones(4, 2, 5, dtype=dtype), ones(4, 2, 5), ones(2, 5))
    with pytest.raises(ValueError, match="takes a in float32"):
        triton_scan.states(ones(5, dtype=dtype), ones(4, 2, 5), ones(2, 5))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"start must be \(2, 5\)"):
        triton_scan.states(ones(5), ones(4, 2, 5), ones(1, 5))
    with pytest.raises(ValueError, match=r"a must be \(5,\)"):
        triton_scan.states(ones(6), ones(4, 2, 5), ones(2, 5))
    with pytest.raises(ValueError, match="must be of one shape"):
        triton_scan.adjoint(ones(5), ones(4, 2, 5), ones(3, 2, 5), ones(2, 5))
    with pytest.raises(ValueError, match="not empty"):
        triton_scan.states(ones(5), ones(0, 2, 5), ones(2, 5))


def test_available_on_a_cpu_only_under_the_interpreter(monkeypatch):
    monkeypatch.setattr(triton_scan, "_INTERPRETED", False)
    assert not triton_scan.available(torch.device("cpu"))
    assert triton_scan.available(torch.device("cuda"))
    monkeypatch.setattr(triton_scan, "triton", None)
    assert not triton_scan.available(torch.device("cuda"))
