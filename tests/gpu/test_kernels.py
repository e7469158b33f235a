"""The fused Triton kernels against a float64 loop.

Run on a GPU by tests/gpu/run.sh, and on a CPU, with smaller shapes, under Triton's interpreter by
tests/system/test_interpreter.py.
"""

import os

import pytest
import torch

from bench.backends.torch import scan, triton_scan

DEVICE = os.environ.get("BENCH_TEST_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
pytestmark = pytest.mark.skipif(
    not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1", reason="a CPU without Triton's interpreter"
)

FLOAT32 = 1e-4  # of the largest entry: what the project promises for 16384 steps with |lambda| up to 0.9999
BFLOAT16 = 2.0**-7  # of the entry: one unit in the last of 8 bits, because the interpreter cuts off where GPUs round


def pair(rng, *shape, dtype=torch.float32):
    return tuple(torch.randn(shape, generator=rng).to(DEVICE, dtype) for _ in range(2))


def case(length, batch, n, dtype=torch.float32):
    """a, v, g and start; |a| spreads from 0.5 to 0.9999, most of it close to 1."""
    rng = torch.Generator().manual_seed(length)
    size = torch.Size(n).numel()
    modulus = 1 - 10 ** -torch.linspace(0.3, 4, size) if size > 1 else torch.tensor([0.9999])
    phase = 6.3 * torch.rand(size, generator=rng)
    a = tuple((modulus * part).reshape(n).to(DEVICE) for part in (phase.cos(), phase.sin()))
    v, g = (pair(rng, length, batch, *n, dtype=dtype) for _ in range(2))
    return a, v, g, pair(rng, batch, *n)


def loop(a, v, start):
    """All states, one after the other, in complex128."""
    a, v, x = (torch.complex(re.double(), im.double()) for re, im in (a, v, start))
    found = []
    for step in v:
        x = a * x + step
        found.append(x)
    return torch.stack(found)


def adjoint_loop(a, g, x, start):
    zero = torch.zeros_like(start[0])
    h = loop((a[0], -a[1]), tuple(part.flip(0) for part in g), (zero, zero)).flip(0)
    x, start = (torch.complex(re.double(), im.double()) for re, im in (x, start))
    before = torch.cat([start[None], x[:-1]])
    return h, (h * before.conj()).sum((0, 1)), torch.complex(a[0].double(), -a[1].double()) * h[0]


def error(found, wanted):
    """The largest difference, as a part of the largest entry."""
    return float((torch.complex(*(part.double() for part in found)) - wanted).abs().max() / wanted.abs().max())


def check(length, batch, n):
    a, v, g, start = case(length, batch, n)
    x = triton_scan.states(a, v, start)
    errors = {"x": error(x, loop(a, v, start))}
    found = triton_scan.adjoint(a, g, x, start)
    for name, value, wanted in zip(("h", "da", "ds"), found, adjoint_loop(a, g, x, start), strict=True):
        assert value[0].shape == value[1].shape == wanted.shape
        assert value[0].dtype == value[1].dtype == torch.float32
        errors[name] = error(value, wanted)
    assert max(errors.values()) < FLOAT32, errors


on_gpu = pytest.mark.skipif(not ON_GPU, reason="too long for the interpreter")


def test_the_kernels_are_available_here():
    assert triton_scan.available(torch.device(DEVICE))


@pytest.mark.parametrize(("batch", "n"), [(1, 1), (3, 1), (1, 5), (3, 5)])
@pytest.mark.parametrize("length", [1, 31, 32, 33])
def test_states_and_adjoint_are_those_of_the_loop(length, batch, n):
    check(length, batch, (n,))


@pytest.mark.parametrize(("length", "batch"), [(1, 3), (33, 3), (1000, 1)])
def test_states_and_adjoint_are_those_of_the_loop_with_64_states(length, batch):
    check(length, batch, (64,))


@on_gpu
@pytest.mark.parametrize("n", [1, 5])
def test_states_and_adjoint_of_a_longer_sequence_with_few_states(n):
    check(1000, 3, (n,))


def test_one_system_a_channel():
    check(33, 2, (3, 5))


def test_more_lanes_than_a_program_holds():
    check(33, 3, (50,))


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17, 50])
def test_groups_of_chunks_pass_their_states_on(length, monkeypatch):
    """Chunks of 2 steps in groups of 4: a group is 8 steps."""
    monkeypatch.setattr(triton_scan, "STEPS", 2)
    monkeypatch.setattr(triton_scan, "GROUP", 4)
    check(length, 2, (5,))


class AtOnce:
    """Runs the programs of a kernel in processes beside each other on memory that they share."""

    processes = 3

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*arguments, **constants):
            for value in arguments:
                if isinstance(value, torch.Tensor):
                    value.share_memory_()
            counts = [grid[0] // self.processes + (i < grid[0] % self.processes) for i in range(self.processes)]
            context = torch.multiprocessing.get_context("fork")
            running = [
                context.Process(target=lambda n=n: self.kernel[(n,)](*arguments, **constants)) for n in counts if n
            ]
            for process in running:
                process.start()
            for process in running:
                process.join(60)
            assert [process.exitcode for process in running] == [0] * len(running)

        return launch


@pytest.mark.skipif(ON_GPU, reason="a GPU runs programs at once anyway")
def test_programs_that_run_at_once_wait_for_each_other(monkeypatch):
    """The interpreter runs one program after another, so no wait would ever be tested; its atomics are real ones."""
    monkeypatch.setattr(triton_scan, "STEPS", 2)
    monkeypatch.setattr(triton_scan, "GROUP", 4)
    a, v, g, start = case(30, 2, (5,))
    x = triton_scan.states(a, v, start)
    wanted = triton_scan.adjoint(a, g, x, start)
    monkeypatch.setattr(triton_scan, "_linear_scan", AtOnce(triton_scan._linear_scan))
    again = (triton_scan.states(a, v, start), *triton_scan.adjoint(a, g, x, start))
    for one, other in zip(again, (x, *wanted), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("length", [15, 16, 17, 50])
def test_time_uncut_with_many_lanes(length, monkeypatch):
    monkeypatch.setattr(triton_scan, "SEQUENTIAL_LANES", 0)
    check(length, 3, (5,))


@pytest.mark.parametrize("length", [16, 50])
def test_bfloat16_in_and_out_is_the_float32_scan_rounded_once(length):
    a, v, g, start = case(length, 3, (5,), torch.bfloat16)
    x = triton_scan.states(a, v, start)
    h, da, ds = triton_scan.adjoint(a, g, x, start)
    h_wanted, da_wanted, ds_wanted = adjoint_loop(a, g, x, start)
    for found, wanted in ((x, loop(a, v, start)), (h, h_wanted)):
        for part, expected in zip(found, (wanted.real, wanted.imag), strict=True):
            assert part.dtype == torch.bfloat16
            torch.testing.assert_close(part.double(), expected, rtol=BFLOAT16, atol=FLOAT32 * float(wanted.abs().max()))
    assert da[0].dtype == ds[0].dtype == torch.float32  # not rounded to bfloat16 on the way, therefore exact:
    assert error(da, da_wanted) < FLOAT32
    assert error(ds, ds_wanted) < FLOAT32


def halves(parts):
    """As the two halves of one projection."""
    return torch.cat(parts, -1).chunk(2, -1)


def batch_first(parts):
    return tuple(part.transpose(0, 1).contiguous().transpose(0, 1) for part in parts)


def states_strided(parts):
    return tuple(torch.stack([part, part], -1)[..., 0] for part in parts)


def of_two_layouts(parts):
    return parts[0], batch_first(parts)[1]


@pytest.mark.parametrize("layout", [halves, batch_first, states_strided, of_two_layouts])
def test_layouts_do_not_matter(layout):
    a, v, g, start = case(33, 3, (5,))
    x = triton_scan.states(a, v, start)
    wanted = triton_scan.adjoint(a, g, x, start)
    x_found = triton_scan.states(states_strided(a), layout(v), batch_first(start))
    found = triton_scan.adjoint(a, layout(g), layout(x), start)
    for one, other in zip((x, *wanted), (x_found, *found), strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_one_sequence_expanded_over_the_batch_and_time():
    a, v, _, start = case(33, 3, (5,))
    v = tuple(part[:1, :1].expand(33, 3, 5) for part in v)
    assert error(triton_scan.states(a, v, start), loop(a, v, start)) < FLOAT32
    ones = torch.ones((), device=DEVICE).expand(33, 3, 5)  # the gradient of a sum
    found = triton_scan.adjoint(a, (ones, ones), v, start)
    for value, wanted in zip(found, adjoint_loop(a, (ones, ones), v, start), strict=True):
        assert error(value, wanted) < FLOAT32


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        a, v, start = inputs[:2], inputs[2:4], inputs[4:]
        x = triton_scan.states(a, v, start)
        ctx.save_for_backward(*a, *x, *start)
        return x

    @staticmethod
    def backward(ctx, *g):
        a, x, start = ctx.saved_tensors[:2], ctx.saved_tensors[2:4], ctx.saved_tensors[4:]
        h, da, ds = triton_scan.adjoint(a, g, x, start)
        return *da, *h, *ds


def test_gradients_are_those_that_torch_finds_through_the_loop():
    a, v, g, start = case(40, 2, (5,))
    inputs = [part.clone().requires_grad_() for part in (*a, *v, *start)]
    found = torch.autograd.grad(Scan.apply(*inputs), inputs, g)
    exact = [part.detach().double().requires_grad_() for part in inputs]
    x = loop(exact[:2], exact[2:4], exact[4:])
    wanted = torch.autograd.grad((x.real, x.imag), exact, [part.double() for part in g])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=FLOAT32 * float(other.abs().max()))


def test_the_same_input_gives_the_same_bits():
    a, v, g, start = case(16384, 2, (64,)) if ON_GPU else case(40, 2, (5,))
    x = triton_scan.states(a, v, start)
    wanted = triton_scan.adjoint(a, g, x, start)
    for _ in range(50 if ON_GPU else 1):
        again = (triton_scan.states(a, v, start), *triton_scan.adjoint(a, g, x, start))
        for one, other in zip(again, (x, *wanted), strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


@on_gpu
@pytest.mark.parametrize(("length", "n"), [(16384, 64), (16384, 512), (2048, 4096)])
def test_large_shapes_are_those_of_the_loop_and_of_the_chunked_form(length, n):
    """512 and 4096 lanes: time is cut into 1024 chunks; 32768 lanes: it is not cut."""
    a, v, g, start = case(length, 8, (n,))
    x = triton_scan.states(a, v, start)
    assert error(x, loop(a, v, start)) < FLOAT32
    wanted = adjoint_loop(a, g, x, start)
    for found, value in zip(triton_scan.adjoint(a, g, x, start), wanted, strict=True):
        assert error(found, value) < FLOAT32
    del wanted, found, value
    chunked = scan._chunked(a, v, start)
    assert error(x, torch.complex(*chunked)) < 2 * FLOAT32


@on_gpu
@pytest.mark.parametrize(("length", "n"), [(16384, 64), (2048, 4096)])
def test_large_shapes_in_bfloat16(length, n):
    a, v, _, start = case(length, 8, (n,), torch.bfloat16)
    wanted = loop(a, v, start)
    for part, expected in zip(triton_scan.states(a, v, start), (wanted.real, wanted.imag), strict=True):
        torch.testing.assert_close(part.double(), expected, rtol=BFLOAT16, atol=FLOAT32 * float(wanted.abs().max()))


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scan_of_a_layer_runs_the_kernel_forward_and_backward(dtype):
    a, v, g, start = case(100, 2, (5,), dtype)
    v = tuple(part.requires_grad_() for part in v)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.autograd.grad(scan.scan(a, v, tuple(part.to(dtype) for part in start)), v, g)
        torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages() if "_linear_scan" in event.key)
    assert launches == 2, profile.key_averages().table()
