"""The conformance suite: its oracle, that right layers pass, and that each wrong one fails where it is wrong."""

import numpy as np
import pytest
import torch

import bench
from bench.backends import reference
from bench.backends.torch import layer_module

SYSTEMS = ["lru", "rotrnn", "s4d", "s5[bidirectional=true]", "s4d[bidirectional=true]"]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def torch_system_gradients(system, u, cotangent, lengths):
    """The same gradients by torch's automatic differentiation of a plain loop in complex128."""
    leaves = [torch.tensor(np.asarray(x), requires_grad=True) for x in system if x is not None]
    inputs = torch.tensor(u, requires_grad=True)
    Lambda, B, C, D, *rest = leaves

    def read(C, u):
        x, outputs = torch.zeros(len(u), *Lambda.shape, dtype=torch.complex128), []
        for t in range(u.shape[1]):
            v = u[:, t].to(B.dtype) @ B.T if Lambda.ndim == 1 else B * u[:, t, :, None]
            x = Lambda * x + v
            outputs.append((x @ C.T if Lambda.ndim == 1 else (C * x).sum(-1)).real)
        return torch.stack(outputs, 1)

    y = read(C, inputs) + D * inputs
    if rest:
        inside = torch.arange(u.shape[1])[None, :, None] < torch.tensor(lengths)[:, None, None]
        y = y + read(rest[0], (inputs * inside).flip(1)).flip(1)
    (y * torch.tensor(cotangent)).sum().backward()
    return y.detach().numpy(), [leaf.grad.numpy() for leaf in leaves], inputs.grad.numpy()


@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("model", SYSTEMS)
def test_the_adjoint_loop_gives_the_gradients_of_automatic_differentiation(model, length):
    layer = bench.layer(model, d_model=3)
    system = reference.system(layer.layer, layer.init(0))
    u, cotangent = draw(2, 3, length, 3)
    lengths = np.array([length, max(1, length - 5), 1])
    y, fields, du = reference.adjoint(system, u, cotangent, lengths)
    wanted_y, wanted, wanted_du = torch_system_gradients(system, u, cotangent, lengths)
    # two float64 computations of sums over at most 17 steps: some 1e-14 of the largest entry
    for found, right in zip(
        [y, du, *[x for x in fields if x is not None]], [wanted_y, wanted_du, *wanted], strict=True
    ):
        np.testing.assert_allclose(found, right, atol=1e-12 * np.abs(right).max())


@pytest.mark.parametrize("model", SYSTEMS)
def test_the_adjoint_loop_gives_the_slope_of_the_loss(model):
    layer = bench.layer(model, d_model=3)
    system = reference.system(layer.layer, layer.init(0))
    u, cotangent = draw(2, 2, 40, 3)
    _, fields, du = reference.adjoint(system, u, cotangent)

    def loss(step):
        moved = system._replace(
            **{name: x + step * directions[name] for name, x in system._asdict().items() if name in directions}
        )
        return np.sum(cotangent * reference.adjoint(moved, u + step * moved_u, cotangent)[0])

    rng = np.random.default_rng(1)
    directions = {}
    for name, x in system._asdict().items():
        if x is not None:
            real = rng.standard_normal(x.shape)
            directions[name] = real + 1j * rng.standard_normal(x.shape) if np.iscomplexobj(x) else real
    moved_u = rng.standard_normal(u.shape)
    step = 1e-6
    slope = (loss(step) - loss(-step)) / (2 * step)
    along = [np.sum((getattr(fields, name).conj() * d).real) for name, d in directions.items()]
    # central differences: step^2 times third derivatives of 40 steps, and 1e-16 / step of rounding
    np.testing.assert_allclose(sum(along) + np.sum(du * moved_u), slope, rtol=1e-6)
