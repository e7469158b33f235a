"""The scan of `scan.py` and its adjoint as one fused Triton kernel: float32 or bfloat16 in and out, float32 inside.

A program holds STEPS time steps of BLOCK lanes (a lane is one state of one sequence) in registers, so each value is
read and written once. How programs share time depends on the shape:

* at least `SEQUENTIAL_LANES` lanes, or one chunk: a program runs over all chunks of its lanes and keeps the state in
  registers. There are enough programs without cutting time, and none waits for another.
* fewer lanes: one program for each chunk. It publishes its chunk's end state and looks back: for those of the chunks
  before it in its group of `GROUP`, which wait for nobody, and for the state at the end of the group before, which is
  what length / (STEPS GROUP) programs in sequence pass on. Programs take their place from a counter, so a program
  waits only for programs that have started, and these end. All sums have an order that only the shape decides: results
  are reproducible bit by bit, but the batch size is part of the shape.

Lambda^STEPS is squared up in float64 inside each program: a few operations, and no launch of its own. In float32 it
would be wrong by some STEPS roundings, the same ones in every chunk, as if Lambda were moved by one, and the state by
1 / (1 - |Lambda|) roundings. Length 16384, |Lambda| up to 0.9999, the order of the sums emulated in numpy, error as a
part of the largest state: 1.3e-4 with powers in float32, 1.2e-6 with these; 5e-6 for a plain float32 loop.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.backends.torch.scan import Pair
from bench.contract import require

try:
    import triton
    import triton.language as tl
except ImportError:  # no wheel for this system
    triton = None

STEPS = 16
"""Time steps of a chunk, a power of 2: a row of v takes two registers of a thread, in the adjoint four."""

GROUP = 32
"""Chunks whose end states a program adds up itself, a power of 2 and at most BLOCK: one flag a thread."""

BLOCK = 64
"""Lanes of a program, two warps with one lane a thread: 128 bytes a row and warp in float32."""

SEQUENTIAL_LANES = 1 << 15
"""Lanes from which time is not cut. Reckoned, not measured: 512 programs with 16 rows each on their way are 32 KiB for
each of 132 processors in float32, and 4.8 TB/s at .8 µs need 29 KB."""

DTYPES = (torch.float32, torch.bfloat16)

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton.jit looks once, so this does


def available(device: torch.device) -> bool:
    """Whether the kernels run on this device: a GPU, or a CPU under TRITON_INTERPRET=1 set before the import."""
    return triton is not None and (torch.device(device).type == "cuda" or _INTERPRETED)


def states(a: Pair, v: Pair, start: Pair) -> Pair:
    """x_t = a x_{t-1} + v_t with x_{-1} = start: all x, (length, batch, *n), in the dtype of v.

    v (length, batch, *n), float32 or bfloat16, of any strides; a (*n,) and start (batch, *n), used in float32.
    """
    v = _rows("v", v)
    x = _empty(v[0].shape, v[0])
    _launch(a, v, start, x)
    return x


def adjoint(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """(h, da, ds): the gradients of sum(g_re x_re + g_im x_im) in v, a and start, where x = states(a, v, start).

    h_t = g_t + conj(a) h_{t+1}, (length, batch, *n) in the dtype of g; da = sum over t and batch of h_t conj(x_{t-1})
    with x_{-1} = start, (*n,), and ds = conj(a) h_0, (batch, *n), both float32. g and x float32 or bfloat16, of any
    strides. da is added up in float32, first in registers and then over programs by torch: no atomics.
    """
    g, x = _rows("g", g), _rows("x", x)
    require(g[0].shape == x[0].shape, f"g is {tuple(g[0].shape)}, x is {tuple(x[0].shape)}: they must be of one shape")
    h = _empty(g[0].shape, g[0])
    ds = _empty(start[0].shape, g[0], torch.float32)
    da = _launch(a, g, start, h, x, ds)
    assert da is not None
    return h, da, ds


def _rows(name: str, pair: Pair) -> Pair:
    """Both parts in one layout whose last axes can be walked as one."""
    re, im = pair
    allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    for part in pair:
        dtype = str(part.dtype).removeprefix("torch.")
        require(part.dtype in DTYPES, f"the Triton kernel takes {name} in {allowed}, not in {dtype}")
    require(re.dtype == im.dtype and re.shape == im.shape, f"real and imaginary part of {name} must be alike")
    require(re.ndim >= 3 and re.numel() > 0, f"{name} must be (length, batch, *n) and not empty, not {tuple(re.shape)}")
    if re.stride() != im.stride() or not re[0, 0].is_contiguous():
        return re.contiguous(), im.contiguous()
    return re, im


def _float(pair: Pair) -> Pair:
    return pair[0].float().contiguous(), pair[1].float().contiguous()


def _empty(shape: torch.Size, like: Tensor, dtype: torch.dtype | None = None) -> Pair:
    return tuple(torch.empty(shape, dtype=dtype or like.dtype, device=like.device) for _ in range(2))  # type: ignore


def _launch(
    a: Pair, v: Pair, start: Pair, out: Pair, before: Pair | None = None, ds: Pair | None = None
) -> Pair | None:
    """Fills `out`; with `before`, the states x, the adjoint: fills `ds` too and returns da."""
    length, batch, *inner = v[0].shape
    n = v[0].shape[2:].numel()
    for name, pair, shape in (("a", a, tuple(inner)), ("start", start, (batch, *inner))):
        for part in pair:
            require(
                part.shape == shape, f"{name} must be {shape} beside v {tuple(v[0].shape)}, not {tuple(part.shape)}"
            )
            require(part.dtype in DTYPES, f"the Triton kernel takes {name} in float32, not in {part.dtype}")
    a, start = _float(a), _float(start)
    lanes = batch * n
    blocks, chunks = -(-lanes // BLOCK), -(-length // STEPS)
    lookback = chunks > 1 and lanes < SEQUENTIAL_LANES
    slots = flags = da = None
    device = v[0].device
    if lookback:
        slots = torch.empty(2, chunks, lanes, device=device)
        flags = torch.zeros(1 + chunks * blocks, dtype=torch.int32, device=device)
    if before is not None:
        da = torch.empty(2, chunks if lookback else 1, batch, *inner, device=device)
    with torch.cuda.device_of(v[0]):
        _linear_scan[(blocks * chunks if lookback else blocks,)](
            *a, *v, *start, *out,
            *(before or (None, None)), *((None, None) if da is None else da), *(ds or (None, None)),
            *((None, None) if slots is None else slots), flags,
            length, chunks, blocks, lanes, n,
            v[0].stride(0), v[0].stride(1),
            *((0, 0) if before is None else before[0].stride()[:2]),
            ADJOINT=before is not None, LOOKBACK=lookback,
            LOG_STEPS=STEPS.bit_length() - 1, LOG_GROUP=GROUP.bit_length() - 1, BLOCK=BLOCK,
            num_warps=max(1, BLOCK // 32), enable_fp_fusion=True,
        )  # fmt: skip
    return None if da is None else (da[0].sum((0, 1)), da[1].sum((0, 1)))


def _jit(function: Callable) -> Any:
    """The function as a Triton kernel; as it stands where there is no Triton.

    Compiled once for each dtype and constant: numbers and alignment would only matter with several lanes a thread.
    """
    if triton is None:
        return function
    numbers = ["length", "chunks", "blocks", "lanes", "n", "v_time", "v_batch", "x_time", "x_batch"]
    parameters = inspect.signature(function).parameters.values()
    values = [parameter.name for parameter in parameters if parameter.annotation is parameter.empty]
    return triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=values)


@_jit
def _load(
    re, im, stride, offset, lane, lanes, chunk, chunks, length, shift, ADJOINT: tl.constexpr, STEPS: tl.constexpr
):
    """The rows of a chunk in the order of the recurrence, each `shift` steps later in time; 0 where there is none.

    The adjoint starts at the padded end, so that only its first chunk is short and zeros come before it.
    """
    rows_re = ()
    rows_im = ()
    first_row = tl.cast(chunk, tl.int64) * STEPS
    if ADJOINT:
        first_row = tl.cast(chunks, tl.int64) * STEPS - 1 - first_row
    first_row += shift
    for u in tl.static_range(STEPS):
        t = first_row - u if ADJOINT else first_row + u
        there = lane < tl.where((t >= 0) & (t < length), lanes, 0)
        row = t * stride + offset
        rows_re += (tl.load(re + row, mask=there, other=0).to(tl.float32),)  # type: ignore[assignment]
        rows_im += (tl.load(im + row, mask=there, other=0).to(tl.float32),)  # type: ignore[assignment]
    return rows_re, rows_im


@_jit
def _times(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@_jit
def _wait(flags, first, count, blocks, block, BLOCK: tl.constexpr):
    """Until the slots first .. first + count - 1 are published; what was stored there is then visible."""
    i = tl.arange(0, BLOCK)
    pointers = flags + 1 + (first + i) * blocks + block
    asked = i < count
    ready = tl.min(tl.where(asked, tl.atomic_add(pointers, 0, mask=asked, sem="acquire"), 1))
    while ready == 0:
        ready = tl.min(tl.where(asked, tl.atomic_add(pointers, 0, mask=asked, sem="acquire"), 1))


@_jit
def _publish(slot_re, slot_im, flags, x_re, x_im, chunk, lanes, lane, inside, blocks, block):
    offset = tl.cast(chunk, tl.int64) * lanes + lane
    tl.store(slot_re + offset, x_re, mask=inside)
    tl.store(slot_im + offset, x_im, mask=inside)
    tl.debug_barrier()  # the flag follows the stores of all threads
    tl.atomic_xchg(flags + 1 + chunk * blocks + block, 1, sem="release")


@_jit
def _look_back(
    a_re, a_im, end_re, end_im, start_re, start_im, slot_re, slot_im, flags,
    chunk, blocks, block, lanes, lane, inside,
    LOG_STEPS: tl.constexpr, LOG_GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state before this chunk, from its end state when it starts from zero, which is published on the way.

    The slot of a group's last chunk holds the state at the end of the group, every other one the chunk's own end state.
    """
    GROUP: tl.constexpr = 1 << LOG_GROUP
    place = chunk % GROUP
    if place < GROUP - 1:
        _publish(slot_re, slot_im, flags, end_re, end_im, chunk, lanes, lane, inside, blocks, block)

    # P = Lambda^STEPS, and w = P^place.
    wide_re, wide_im = a_re.to(tl.float64), a_im.to(tl.float64)
    for _ in tl.static_range(LOG_STEPS):
        wide_re, wide_im = _times(wide_re, wide_im, wide_re, wide_im)
    p_re, p_im = wide_re.to(tl.float32), wide_im.to(tl.float32)
    w_re, w_im = wide_re * 0 + 1, wide_im * 0
    for bit in tl.static_range(LOG_GROUP):
        more_re, more_im = _times(w_re, w_im, wide_re, wide_im)
        taken = ((place >> bit) & 1) == 1
        w_re, w_im = tl.where(taken, more_re, w_re), tl.where(taken, more_im, w_im)
        wide_re, wide_im = _times(wide_re, wide_im, wide_re, wide_im)

    _wait(flags, chunk - place, place, blocks, block, BLOCK)
    x_re, x_im = tl.zeros_like(end_re), tl.zeros_like(end_im)
    for octet in range((place + 7) // 8, 0, -1):
        for i in tl.static_range(8):  # eight loads at once; before the group's first chunk zero is added to zero
            back = octet * 8 - i
            offset = tl.cast(chunk - back, tl.int64) * lanes + lane
            there = lane < tl.where(back <= place, lanes, 0)
            e_re = tl.load(slot_re + offset, mask=there, other=0, cache_modifier=".cg")  # not a stale line of L1
            e_im = tl.load(slot_im + offset, mask=there, other=0, cache_modifier=".cg")
            x_re, x_im = p_re * x_re - p_im * x_im + e_re, p_re * x_im + p_im * x_re + e_im

    group = chunk // GROUP
    before = chunk - place - 1
    _wait(flags, before, tl.minimum(group, 1), blocks, block, BLOCK)
    offset = tl.cast(before, tl.int64) * lanes + lane
    there = lane < tl.where(group > 0, lanes, 0)
    s_re = tl.load(slot_re + offset, mask=there, other=0, cache_modifier=".cg")
    s_im = tl.load(slot_im + offset, mask=there, other=0, cache_modifier=".cg")
    s_re, s_im = tl.where(group > 0, s_re, start_re), tl.where(group > 0, s_im, start_im)
    w_re, w_im = w_re.to(tl.float32), w_im.to(tl.float32)
    x_re, x_im = w_re * s_re - w_im * s_im + x_re, w_re * s_im + w_im * s_re + x_im

    if place == GROUP - 1:
        after_re, after_im = p_re * x_re - p_im * x_im + end_re, p_re * x_im + p_im * x_re + end_im
        _publish(slot_re, slot_im, flags, after_re, after_im, chunk, lanes, lane, inside, blocks, block)
    return x_re, x_im


@_jit
def _linear_scan(
    a_re, a_im, v_re, v_im, start_re, start_im, out_re, out_im, x_re, x_im, da_re, da_im, ds_re, ds_im,
    slot_re, slot_im, flags, length, chunks, blocks, lanes, n, v_time, v_batch, x_time, x_batch,
    ADJOINT: tl.constexpr, LOOKBACK: tl.constexpr,
    LOG_STEPS: tl.constexpr, LOG_GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Chunks are numbered in the order of the recurrence, so the adjoint's first one is the last in time."""
    STEPS: tl.constexpr = 1 << LOG_STEPS
    if LOOKBACK:
        ticket = tl.atomic_add(flags, 1)  # in the order of starting, whatever the order of program numbers
        block = ticket % blocks
        first = ticket // blocks
        past = first + 1
    else:
        block = tl.program_id(0)
        first = 0
        past = chunks
    lane = block * BLOCK + tl.arange(0, BLOCK)
    inside = lane < lanes
    k = lane % n
    batch = (lane // n).to(tl.int64)
    lr = tl.load(a_re + k, mask=inside, other=0)
    li = tl.load(a_im + k, mask=inside, other=0)
    s_re = tl.load(start_re + lane, mask=inside, other=0)
    s_im = tl.load(start_im + lane, mask=inside, other=0)
    h_re, h_im = s_re, s_im
    if ADJOINT:
        li = -li
        h_re, h_im = tl.zeros_like(s_re), tl.zeros_like(s_im)
    sum_re, sum_im = tl.zeros_like(s_re), tl.zeros_like(s_im)

    for chunk in range(first, past):
        rows_re, rows_im = _load(
            v_re, v_im, v_time, batch * v_batch + k, lane, lanes, chunk, chunks, length, 0, ADJOINT, STEPS
        )
        if ADJOINT:
            before_re, before_im = _load(
                x_re, x_im, x_time, batch * x_batch + k, lane, lanes, chunk, chunks, length, -1, ADJOINT, STEPS
            )
        if LOOKBACK:
            e_re, e_im = rows_re[0], rows_im[0]
            for u in tl.static_range(1, STEPS):
                e_re, e_im = lr * e_re - li * e_im + rows_re[u], lr * e_im + li * e_re + rows_im[u]
            h_re, h_im = _look_back(
                lr, li, e_re, e_im, h_re, h_im, slot_re, slot_im, flags,
                chunk, blocks, block, lanes, lane, inside, LOG_STEPS, LOG_GROUP, BLOCK,
            )  # fmt: skip
        first_row = tl.cast(chunk, tl.int64) * STEPS
        if ADJOINT:
            first_row = tl.cast(chunks, tl.int64) * STEPS - 1 - first_row
        part_re, part_im = tl.zeros_like(s_re), tl.zeros_like(s_im)  # short sums first: length roundings would show
        for u in tl.static_range(STEPS):
            h_re, h_im = lr * h_re - li * h_im + rows_re[u], lr * h_im + li * h_re + rows_im[u]
            if ADJOINT:
                part_re += h_re * before_re[u] + h_im * before_im[u]
                part_im += h_im * before_re[u] - h_re * before_im[u]
            t = first_row - u if ADJOINT else first_row + u
            there = lane < tl.where(t < length, lanes, 0)
            row = t * lanes + lane
            tl.store(out_re + row, h_re, mask=there)
            tl.store(out_im + row, h_im, mask=there)
        sum_re += part_re
        sum_im += part_im

    if ADJOINT:
        if past == chunks:  # the state is h_0, and what came before x_0 is the start
            sum_re += h_re * s_re + h_im * s_im
            sum_im += h_im * s_re - h_re * s_im
            tl.store(ds_re + lane, lr * h_re - li * h_im, mask=inside)
            tl.store(ds_im + lane, lr * h_im + li * h_re, mask=inside)
        place = tl.cast(first, tl.int64) * lanes + lane
        tl.store(da_re + place, sum_re, mask=inside)
        tl.store(da_im + place, sum_im, mask=inside)
