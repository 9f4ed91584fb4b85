"""Norms of a rebuilt network learn the statistics that those of the original learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nnstretch.capture.rebuild_module import build
from nnstretch.capture.torch_export import trace


class Twice(nn.Module):
    """One norm behind two convolutions."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the norm twice."""
        return self.norm(self.second(torch.relu(self.norm(self.first(x)))))


def in_a_row(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(4, 2, 1))


@pytest.mark.parametrize("network", [in_a_row, Twice])
@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm2d(4),
        lambda: nn.BatchNorm2d(4, momentum=None),
        lambda: nn.BatchNorm2d(4, affine=False, momentum=0.3),
        lambda: nn.InstanceNorm2d(4, track_running_stats=True),
        lambda: nn.InstanceNorm2d(4, track_running_stats=True, affine=True, momentum=None),
        lambda: nn.InstanceNorm2d(4, affine=True),
    ],
)
def test_norms_learn_in_training_what_the_originals_do(
    network: Callable[[nn.Module], nn.Module], norm: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(0)
    original, x = network(norm()).eval(), torch.randn(4, 3, 6, 6) + 2
    captured = trace(original, x, "net")
    rebuilt = build(captured.graph, captured.weights)
    for batch in (x, 2 * x, x + 1):
        torch.testing.assert_close(rebuilt.train()(batch), original.train()(batch))
    torch.testing.assert_close(rebuilt.eval()(x), original.eval()(x))


def test_two_norms_that_only_share_statistics_stay_calls_of_the_operator() -> None:
    class Apart(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Call the norm, and the operator with another epsilon."""
            first, norm = self.norm(self.first(x)), self.norm
            values = norm.running_mean, norm.running_var, norm.weight, norm.bias
            return nn.functional.batch_norm(self.second(first), *values, eps=0.1)

    module, x = Apart(nn.BatchNorm2d(4)).eval(), torch.randn(2, 3, 6, 6)
    captured = trace(module, x, "net")
    rebuilt = build(captured.graph, captured.weights).eval()
    torch.testing.assert_close(rebuilt(x), module(x))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in rebuilt.modules())
