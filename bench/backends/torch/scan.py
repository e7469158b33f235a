"""The linear recurrence x_t = Lambda x_{t-1} + v_t over time, and its own backward pass.

Lambda does not depend on t, so no product of Lambdas is carried along. Two primitives, `states` and `adjoint`, are
chosen by device; all else is built on them. The adjoint is the same recurrence run backwards with conj(Lambda), and its
own derivative is made of scans, so it can be differentiated again. Real and imaginary parts are kept apart, but for
the scan in chunks: a step of it is one operation on complex numbers, and four on parts.

Supported: reverse mode to any order, vmap, checkpointing. Forward mode is refused by torch itself.
"""

from __future__ import annotations

import importlib.util
from functools import partial

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""Real and imaginary part."""


# The primitives: time first, one axis of states, not differentiable by themselves.


def algorithm(device: str, dtype: torch.dtype = torch.float32) -> str:
    """The scan that runs: "triton-scan" on cuda where triton is installed, but not in float64; else "chunked-scan".

    There is no other rule, and no falling back while a program runs: a kernel that cannot be compiled is an error.
    """
    fused = device == "cuda" and dtype != torch.float64 and importlib.util.find_spec("triton") is not None
    return "triton-scan" if fused else "chunked-scan"


def states(a: Pair, v: Pair, start: Pair) -> Pair:
    """x_t = a x_{t-1} + v_t, (length, batch, n), for a (n,) from the state before, (batch, n)."""
    if torch.compiler.is_compiling():
        return _states_operator(*a, *v, *start)
    if algorithm(v[0].device.type, v[0].dtype) == "triton-scan":
        from bench.backends.torch import triton_scan

        return triton_scan.states(a, v, start)
    return _chunked(a, v, start)


def adjoint(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """Gradients of v, (length, batch, n), a, (n,), and start, (batch, n), from that of the states x, all of `states`.

    A gradient here is the pair of derivatives with respect to the real and the imaginary part.
    """
    if torch.compiler.is_compiling():
        h_re, h_im, da_re, da_im, ds_re, ds_im = _adjoint_operator(*a, *g, *x, *start)
        return (h_re, h_im), (da_re, da_im), (ds_re, ds_im)
    if algorithm(g[0].device.type, g[0].dtype) == "triton-scan":
        from bench.backends.torch import triton_scan

        return triton_scan.adjoint(a, g, x, start)
    return _adjoint_chunked(a, g, x, start)


# For torch.compile each primitive is one operator, which it leaves as it is: traced, a loop would be unrolled.


@torch.library.custom_op("linrec_bench::states", mutates_args=())
def _states_operator(
    a_re: Tensor, a_im: Tensor, v_re: Tensor, v_im: Tensor, s_re: Tensor, s_im: Tensor
) -> tuple[Tensor, Tensor]:
    x_re, x_im = states((a_re, a_im), (v_re, v_im), (s_re, s_im))
    return _own(x_re), _own(x_im)


def _own(x: Tensor) -> Tensor:
    """A copy in memory of its own: an operator's outputs share none with each other or with its inputs."""
    return x.clone(memory_format=torch.contiguous_format)


@_states_operator.register_fake
def _(a_re, a_im, v_re, v_im, s_re, s_im):
    return _like((v_re, v_im))


@torch.library.custom_op("linrec_bench::adjoint", mutates_args=())
def _adjoint_operator(
    a_re: Tensor,
    a_im: Tensor,
    g_re: Tensor,
    g_im: Tensor,
    x_re: Tensor,
    x_im: Tensor,
    s_re: Tensor,
    s_im: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    h, da, ds = adjoint((a_re, a_im), (g_re, g_im), (x_re, x_im), (s_re, s_im))
    h_re, h_im, da_re, da_im, ds_re, ds_im = map(_own, (*h, *da, *ds))
    return h_re, h_im, da_re, da_im, ds_re, ds_im


@_adjoint_operator.register_fake
def _(a_re, a_im, g_re, g_im, x_re, x_im, s_re, s_im):
    return *_like((g_re, g_im)), *_like((a_re, a_im)), *_like((s_re, s_im))


def scan(Lambda: Pair, v: Pair, start: Pair) -> Pair:
    """All states, (length, batch, *n), from v of that shape and the state before them, (batch, *n); Lambda is (*n)."""
    re, im = _Scan.apply(*Lambda, *v, *start)
    return re, im


class _Scan(torch.autograd.Function):
    """Pairs are given one part after the other, as `apply` takes them: Lambda, v, start."""

    @staticmethod
    def forward(a_re, a_im, v_re, v_im, s_re, s_im):
        x = states(_flat((a_re, a_im), 0), _flat((v_re, v_im), 2), _flat((s_re, s_im), 1))
        return _shaped(x, v_re)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a_re, a_im, _, _, s_re, s_im = inputs
        ctx.save_for_backward(a_re, a_im, *output, s_re, s_im)

    @staticmethod
    def backward(ctx, g_re, g_im):
        a_re, a_im, x_re, x_im, s_re, s_im = ctx.saved_tensors
        h_re, h_im, *rest = _Adjoint.apply(a_re, a_im, g_re, g_im, x_re, x_im, s_re, s_im)
        da, ds = rest[:2], rest[2:]
        return *da, h_re, h_im, *ds

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _Scan.apply(*_beside_states(info, in_dims, inputs, (0, 0, 2, 2, 1, 1))), 2


class _Adjoint(torch.autograd.Function):
    """`adjoint`, differentiable. Inputs: a, g, x, start; outputs: the gradients of v, a and start."""

    @staticmethod
    def forward(a_re, a_im, g_re, g_im, x_re, x_im, s_re, s_im):
        pairs = _flat((a_re, a_im), 0), _flat((g_re, g_im), 2), _flat((x_re, x_im), 2), _flat((s_re, s_im), 1)
        h, da, ds = adjoint(*pairs)
        return *_shaped(h, g_re), *_shaped(da, a_re), *_shaped(ds, s_re)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a_re, a_im, _, _, x_re, x_im, s_re, s_im = inputs
        ctx.save_for_backward(a_re, a_im, x_re, x_im, s_re, s_im, *output[:2])

    @staticmethod
    def backward(ctx, k_re, k_im, *others):
        """With p_t = a p_{t-1} + k_t + e conj(conj(x_{t-1})), p_{-1} the cotangent of start's gradient, e that of a's:

        p belongs to g, sum_t conj(p_{t-1}) h_t to a, conj(e) h_{t+1} to x_t and conj(e) h_0 to start.
        """
        a_re, a_im, x_re, x_im, s_re, s_im, h_re, h_im = ctx.saved_tensors
        e, p_start = others[:2], others[2:]
        more = times(e, _delayed((x_re, x_im), (s_re, s_im)))
        p = scan((a_re, a_im), (k_re + more[0], k_im + more[1]), p_start)
        before = _delayed(p, p_start)
        da = times((before[0], -before[1]), (h_re, h_im))
        dx = times((e[0], -e[1]), (h_re, h_im))
        zero = torch.zeros_like(h_re[:1])
        x_gradient = (torch.cat([part[1:], zero]) for part in dx)
        return *(part.sum((0, 1)) for part in da), *p, *x_gradient, dx[0][0], dx[1][0]

    @staticmethod
    def vmap(info, in_dims, *inputs):
        found = _Adjoint.apply(*_beside_states(info, in_dims, inputs, (0, 0, 2, 2, 2, 2, 1, 1)))
        return found, (2, 2, 0, 0, 1, 1)


def _beside_states(info, in_dims, inputs, places):
    """Inputs of a vmapped function, the axis that is mapped over moved before the axes of the states."""
    return [
        x.expand(info.batch_size, *x.shape).movedim(0, place) if dim is None else x.movedim(dim, place)
        for x, dim, place in zip(inputs, in_dims, places, strict=True)
    ]


def _delayed(x: Pair, start: Pair) -> Pair:
    """x_{t-1}, from the state before x."""
    return torch.cat([start[0][None], x[0][:-1]]), torch.cat([start[1][None], x[1][:-1]])


def _flat(x: Pair, leading: int) -> Pair:
    """The axes after the first `leading` ones as one."""
    return x[0].reshape(*x[0].shape[:leading], -1), x[1].reshape(*x[1].shape[:leading], -1)


def _shaped(x: Pair, like: Tensor) -> Pair:
    return x[0].view(like.shape), x[1].view(like.shape)


# Projection, scan, projection, with one backward pass.


def filtered(Lambda: Pair, B: Pair, C: Pair, D: Tensor | None, u: Tensor) -> Tensor:
    """Re(C scan(B u)) + D * u from a zero state, float32 or float64, (length, batch, d_model), for u of that shape.

    Lambda (n,), B (n, d_model), C (d_model, n), D (d_model,) or None for zero. u, and what stands in for y in the
    backward pass, meet the matrices in u's dtype; states are in Lambda's, and so is the product with D, which is added
    in place. Between the passes u and the states are kept, nothing else.
    """
    return _Filtered.apply(*Lambda, *B, *C, D, u)[0]


class _Filtered(torch.autograd.Function):
    """Inputs: Lambda, B, C, D, u. The states are an output too, so that the backward pass can be differentiated: in
    parts, or one complex tensor where the scan runs in chunks."""

    @staticmethod
    def forward(a_re, a_im, b_re, b_im, c_re, c_im, d, u):
        chunked = algorithm(u.device.type, a_re.dtype) == "chunked-scan" and not torch.compiler.is_compiling()
        function = _filtered_in_chunks if chunked else _filtered_by_parts
        return function(a_re, a_im, b_re, b_im, c_re, c_im, d, u)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, *gx):
        a_re, a_im, b_re, b_im, c_re, c_im, d, u, *x = ctx.saved_tensors
        g = torch.zeros_like(u) if g is None else g
        if len(x) == 1:
            if not torch.is_grad_enabled():
                return _filtered_gradients_in_chunks(a_re, a_im, b_re, b_im, c_re, c_im, d, u, x[0], g, gx[0])
            x, gx = (x[0].real, x[0].imag), (None, None) if gx[0] is None else (gx[0].real, gx[0].imag)
        x_re, x_im = x
        rows, g_rows = u.flatten(0, 1), g.flatten(0, 1)
        of_x = [products(u.dtype, a_re.dtype, (g_rows, part)).view(x_re.shape) for part in (c_re, -c_im)]
        k_re, k_im = (part if more is None else part + more for part, more in zip(of_x, gx, strict=True))
        zero = torch.zeros_like(x_re[0])
        h_re, h_im, *da = _Adjoint.apply(a_re, a_im, k_re, k_im, x_re, x_im, zero, zero)[:4]
        h_re, h_im, x_re, x_im = (part.flatten(0, 1) for part in (h_re, h_im, x_re, x_im))
        plain = not torch.is_grad_enabled()
        du = products(u.dtype, a_re.dtype, (h_re, b_re), (h_im, b_im), plain=plain)
        dd = None
        if d is not None:
            du, dd = torch.addcmul(du, g_rows, d), (g_rows * rows).sum(0)
        db = (products(u.dtype, a_re.dtype, (part.T, rows)) for part in (h_re, h_im))
        dc_re, dc_im = (products(u.dtype, a_re.dtype, (g_rows.T, part)) for part in (x_re, x_im))
        return *da, *db, dc_re, -dc_im, dd, du.to(u.dtype).view(u.shape)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return torch.vmap(partial(_filtered_by_parts, plain=False), in_dims)(*inputs), 0


def _filtered_by_parts(a_re, a_im, b_re, b_im, c_re, c_im, d, u, *, plain=True):
    """What `_Filtered` computes; not `plain`, by functions that torch can derive and vmap."""
    scanned = states if plain else scan
    rows = u.flatten(0, 1)
    v_re, v_im = (products(u.dtype, a_re.dtype, (rows, part.T)).view(*u.shape[:2], -1) for part in (b_re, b_im))
    zero = torch.zeros_like(v_re[0])
    x = scanned((a_re, a_im), (v_re, v_im), (zero, zero))
    y = products(u.dtype, a_re.dtype, (x[0].flatten(0, 1), c_re.T), (x[1].flatten(0, 1), -c_im.T), plain=plain)
    if d is not None:
        y = torch.addcmul(y, d, rows.to(y.dtype))
    return y.view(*u.shape[:2], -1), *x


def _filtered_in_chunks(a_re, a_im, b_re, b_im, c_re, c_im, d, u):
    """The same with parts side by side: one product each way, and the scan is done in place.

    Time comes second in memory here, as it does in what a layer is given, so that neither u nor y is copied.
    """
    rows = u.transpose(0, 1).flatten(0, 1)
    v = products(u.dtype, a_re.dtype, (rows, torch.stack([b_re, b_im], 1).flatten(0, 1).T))
    x = _as_states(v, u)
    scan_in_place(torch.complex(a_re, a_im), x, torch.zeros_like(x[0]))
    y = products(u.dtype, a_re.dtype, (v, torch.stack([c_re, -c_im], -1).flatten(1).T))
    if d is not None:
        y.addcmul_(d, rows.to(y.dtype))
    return _time_first(y, u), x


def _filtered_gradients_in_chunks(a_re, a_im, b_re, b_im, c_re, c_im, d, u, x, g, gx):
    """The gradients of all inputs, from x, complex, and the gradients of y and of x. h is conjugate throughout."""
    rows, g_rows, x_rows = (part.transpose(0, 1).flatten(0, 1) for part in (u, g, torch.view_as_real(x).flatten(2)))
    dd = None if d is None else (g_rows * rows).sum(0)  # first: what it needs for a moment is then room for the others
    h_rows = products(u.dtype, a_re.dtype, (g_rows, torch.stack([c_re, c_im], -1).flatten(1)))
    h = _as_states(h_rows, u)
    if gx is not None:
        h += gx.conj()
    da = adjoint_in_place(torch.complex(a_re, a_im), h, x, torch.zeros_like(x[0]))
    du = products(u.dtype, a_re.dtype, (h_rows, torch.stack([b_re, -b_im], 1).flatten(0, 1)))
    if d is not None:
        du.addcmul_(d, g_rows)
    db = products(u.dtype, a_re.dtype, (h_rows.T, rows)).unflatten(0, (-1, 2))
    dc = products(u.dtype, a_re.dtype, (g_rows.T, x_rows)).unflatten(1, (-1, 2))
    return da.real, da.imag, db[:, 0], -db[:, 1], dc[..., 0], -dc[..., 1], dd, _time_first(du.to(u.dtype), u)


def _time_first(rows: Tensor, u: Tensor) -> Tensor:
    """(batch length, ...) as (length, batch, ...), for u of (length, batch, d_model)."""
    return rows.unflatten(0, (u.shape[1], u.shape[0])).transpose(0, 1)


def _as_states(rows: Tensor, u: Tensor) -> Tensor:
    """(batch length, n 2) as complex (length, batch, n), of the same memory."""
    return torch.view_as_complex(_time_first(rows.unflatten(1, (-1, 2)), u))


def products(dtype: torch.dtype, out: torch.dtype, *pairs: Pair, plain: bool = False) -> Tensor:
    """The sum of the matrix products of pairs, all rounded to `dtype`, returned as `out`; `plain`: added in place."""
    a, b = pairs[0]
    total = a.to(dtype) @ b.to(dtype)
    for a, b in pairs[1:]:
        add = total.addmm_ if plain else partial(torch.addmm, total)  # in place vmap has no rule
        total = add(a.to(dtype), b.to(dtype))
    return total.to(out)


# The primitives in chunks.

CHUNK = 8
"""Steps inside a chunk: few, so that one step is work for several threads, from 2^15 numbers a thread in torch."""


SEGMENT = 2**20
"""Numbers in a part of v that is done at once: then what a step reads and writes is still in the processor's cache."""


def _chunked(a: Pair, v: Pair, start: Pair) -> Pair:
    """`states`. Each segment of v is made complex, scanned and taken apart again."""
    x, last = _like(v), torch.complex(*start)
    for part in _segments(v[0]):
        here = torch.complex(v[0][part], v[1][part])
        scan_in_place(torch.complex(*a), here, last)
        x[0][part], x[1][part], last = here.real, here.imag, here[-1]
    return x


def _adjoint_chunked(a: Pair, g: Pair, x: Pair, start: Pair) -> tuple[Pair, Pair, Pair]:
    """`adjoint`, likewise, from the end."""
    h, a_, da = _like(g), torch.complex(*a), torch.complex(*a).zero_()
    after = torch.complex(*start).zero_()
    for part in reversed(_segments(g[0])):
        here, x_here = torch.complex(g[0][part], -g[1][part]), torch.complex(x[0][part], x[1][part])
        first = part.start
        before = torch.complex(x[0][first - 1], x[1][first - 1]) if first else torch.complex(*start)
        da += adjoint_in_place(a_, here, x_here, before, after)
        h[0][part], h[1][part], after = here.real, -here.imag, here[0]
    return h, _parts(da), _parts((a_ * after).conj_physical())


def scan_in_place(a: Tensor, v: Tensor, start: Tensor) -> None:
    """x_t = a x_{t-1} + v_t, complex, written over v: segment by segment, each in chunks."""
    for part in _segments(v):
        _scan_segment(a, v[part], start)
        start = v[part][-1]


def adjoint_in_place(a: Tensor, h: Tensor, x: Tensor, start: Tensor, after: Tensor | None = None) -> Tensor:
    """The gradient of a from conj(g), which conj(gradient of v) is written over; `after` is what comes after that.

    conj(h_t) = a conj(h_{t+1}) + conj(g_t), and the gradient of a is conj(sum_t x_{t-1} conj(h_t)): only its sum is
    conjugated.
    """
    da = torch.zeros_like(a)
    after = torch.zeros_like(start) if after is None else after
    for part in reversed(_segments(h)):
        da += _adjoint_segment(a, h[part], x[part], x[part.start - 1] if part.start else start, after)
        after = h[part.start]
    return da.conj_physical()


def _segments(v: Tensor) -> list[slice]:
    length = len(v)
    steps = max(16, SEGMENT // max(1, v[0].numel()) // CHUNK) * CHUNK  # a batch of 0 has no numbers
    return [slice(first, min(first + steps, length)) for first in range(0, length, steps)]


def _scan_segment(a: Tensor, v: Tensor, start: Tensor) -> None:
    """Chunks side by side: first what each adds to its last state, then their starts, by the same scan over chunks,
    then all states. Steps that fill no chunk come last."""
    length, whole = len(v), _whole(len(v))
    if whole:
        steps = v[:whole].unflatten(0, (-1, CHUNK)).unbind(1)
        end = steps[0][:-1].clone()
        for step in steps[1:]:
            torch.addcmul(step[:-1], a, end, out=end)
        scan_in_place(_power(a, CHUNK), end, start)
        before = torch.cat([start[None], end])
        for step in steps:
            before = step.addcmul_(a, before)
        start = v[whole - 1]
    for step in v[whole:length].unbind(0):
        start = step.addcmul_(a, start)


def _adjoint_segment(a: Tensor, h: Tensor, x: Tensor, start: Tensor, after: Tensor) -> Tensor:
    """The same from the end, from the h after it; returns sum_t x_{t-1} h_t, which is summed on the way."""
    length, whole = len(h), _whole(len(h))
    total = torch.zeros_like(start)
    for t in range(length - 1, whole - 1, -1):
        after = h[t].addcmul_(a, after)
        total.addcmul_(x[t - 1] if t else start, after)
    if not whole:
        return total.sum(0)
    steps, states_ = (part[:whole].unflatten(0, (-1, CHUNK)).unbind(1) for part in (h, x))
    end = steps[-1][1:].clone()
    for step in steps[-2::-1]:
        torch.addcmul(step[1:], a, end, out=end)
    end = end.flip(0)
    scan_in_place(_power(a, CHUNK), end, after)
    after = torch.cat([end.flip(0), after[None]])
    sums = torch.zeros_like(after)
    for t in range(CHUNK - 1, 0, -1):
        after = steps[t].addcmul_(a, after)
        sums.addcmul_(states_[t - 1], after)
    after = steps[0].addcmul_(a, after)
    sums[1:].addcmul_(states_[-1][:-1], after[1:])
    sums[0].addcmul_(start, after[0])
    return total.sum(0) + sums.sum((0, 1))


def _whole(length: int) -> int:
    """How many steps are done in chunks: none where there would be no more than two."""
    return length // CHUNK * CHUNK if length > 2 * CHUNK else 0


def _like(x: Pair) -> Pair:
    """Room for as much, contiguous."""
    re, im = (torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in x)
    return re, im


def _parts(x: Tensor) -> Pair:
    """Of no common memory, which an operator may not return."""
    return x.real.clone(memory_format=torch.contiguous_format), x.imag.clone(memory_format=torch.contiguous_format)


def _power(a: Tensor, exponent: int) -> Tensor:
    """a^exponent, in float64: an error of it would come back at every chunk, a thousand times where memory is long."""
    return (a.to(torch.complex128) ** exponent).to(a.dtype)


def times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]
