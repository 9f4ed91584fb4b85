"""Activations alone and inside other calls, also far from zero, and what is no number."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    cpp_runtime,  # noqa: F401
)
from support.cpp_layers import Layers, Step, Steps, compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.slow


ACTIVATIONS = (
    nn.ReLU(),
    nn.ReLU6(),
    nn.Hardtanh(-0.5, 0.7),
    nn.SiLU(),
    nn.Hardswish(),
    nn.Hardsigmoid(),
    nn.Sigmoid(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.ELU(0.7),
    nn.SELU(),
    nn.CELU(1.3),
    nn.LeakyReLU(0.2),
    nn.Mish(),
    nn.Tanh(),
    nn.Softplus(2.0, 5.0),
    nn.Softplus(1.0, 200.0),
    nn.Softsign(),
    nn.LogSigmoid(),
    nn.PReLU(),
    nn.PReLU(5, 0.1),
    nn.Softmax(1),
    nn.LogSoftmax(-1),
)


def test_activations_also_far_from_zero(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    x = torch.randn(2, 5, 7, 33) * 4
    x.view(-1)[:6] = torch.tensor([90.0, -90.0, 0.0, 1e-6, -1e-6, 30.0])
    compare(cpp_runtime, Layers(*ACTIVATIONS), tmp_path, x)


def test_gates_close_for_the_smallest_numbers(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    gates = nn.SiLU(), nn.Mish(), nn.GELU(), nn.GELU("tanh"), nn.Hardswish(), nn.Sigmoid()
    x = torch.randn(2, 5, 7, 33)
    x.view(-1)[:4] = torch.tensor([torch.finfo(torch.float32).min, -3e38, -1e4, -79.0])
    compare(cpp_runtime, Layers(*gates), tmp_path, x)


def test_activations_inside_convolutions_and_products(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    plain = [a for a in ACTIVATIONS if not isinstance(a, nn.PReLU | nn.Softmax | nn.LogSoftmax)]
    layers = [nn.Sequential(nn.Conv2d(5, 16, 3), activation) for activation in plain]
    layers += [nn.Sequential(nn.Linear(33, 6), activation) for activation in plain]
    compare(cpp_runtime, Layers(*layers), tmp_path, torch.randn(2, 5, 7, 33) * 4)


def test_what_is_no_number_or_infinite_stays_so(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module = Steps(
        lambda x: x.log().amax(1),
        lambda x: x.log().amin((2, 3)),
        lambda x: F.adaptive_max_pool2d(x.log(), 2),
        lambda x: F.max_pool2d(x.log(), 2),
        lambda x: torch.maximum(x.log(), x),
        lambda x: torch.maximum(x, x.log()),
        lambda x: torch.minimum(x.log(), x),
        lambda x: x.log().relu() + x.log().clamp(-1, 1),
        lambda x: (x.clamp(min=0).log()).amax((2, 3)),
        lambda x: F.adaptive_max_pool2d((x * 0).log(), 2) + x.mean(),
        lambda x: x.log().softmax(1),
        lambda x: (x * 1000).exp().clamp(min=1e-6),
        lambda x: x.abs().log().clamp(max=-1.0) + (x * 0).log().clamp(max=1.0),
        lambda x: (x * 0).log() ** 0.5,
        lambda x: F.max_pool2d((x * 0).log(), 2).clamp(max=0.5) ** -1,
        lambda x: F.interpolate(x.relu().log(), scale_factor=2, mode="nearest-exact"),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(1, 4, 6, 6))


class PooledMaps(nn.Module):
    """A pool between convolutions, of what is no number or infinite."""

    def __init__(self, pool: nn.Module, step: Step) -> None:
        super().__init__()
        self.before = nn.Conv2d(3, 16, 3, padding=1)
        self.pool = pool
        self.step = step
        self.behind = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute a pool, what a convolution makes of its numbers, and one that is a vector."""
        maps = self.step((self.before(x) * 4).round())
        return (
            self.pool(maps),
            self.behind(self.pool(maps).clamp(-9, 9)),
            self.pool(maps).flatten(1),
        )


POOLS = (nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.MaxPool2d(2, 1, 0, 2))


def test_pools_between_convolutions_keep_what_is_no_number_or_infinite(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    steps: tuple[Step, ...] = (lambda x: x.relu().log(), lambda x: x**0.5)
    layers = [PooledMaps(pool, step) for pool in POOLS for step in steps]
    compare(cpp_runtime, Layers(*layers), tmp_path, torch.randn(1, 3, 14, 11))
