"""Filled borders, computed weights, and operators of several calls."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    cpp_runtime,  # noqa: F401
    translate_module,
)
from support.cpp_layers import Step, Steps, compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from nnstretch.errors import CannotCapture, UnsupportedOp  # noqa: E402

pytestmark = pytest.mark.slow


class Padded(nn.Module):
    """Zeros around what a layer computes, dense where it lies in them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Pad channels, rows, and the columns of one row; join behind it."""
        y = F.relu(self.layer(x))
        more = torch.cat((F.pad(y * 2, (0, 0, 0, 0, 1, 2)), y), 1)
        row = F.pad(torch.tanh(y[:, :, 0] + 1), (2, 0), value=0.5)
        return F.pad(y * 3, (0, 0, 1, 2), value=4.0), more, row, F.unfold(y - 1, 2, padding=(1, 0))


def test_borders_are_filled_around_what_is_computed(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    compare(cpp_runtime, Padded(), tmp_path, torch.randn(1, 3, 5, 6))


class Computed(nn.Module):
    """Layers whose weights are computed from the input, as views that are not dense."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 144)
        self.few = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute each, alone."""
        row = x.mean((0, 2, 3)).repeat(3)
        weight, few = self.layer(row), self.few(row)
        taps = weight.view(3, 3, 4, 4).permute(2, 3, 0, 1)
        gain, shift = few.view(4, 2).unbind(1)
        return (
            F.conv2d(x, taps, gain, padding=1).relu(),
            F.conv2d(x, taps[:, :1], groups=4, padding=1),
            F.conv2d(x, taps[:, :2, :1], gain, groups=2),
            F.conv1d(x[:, :, 0], taps[..., 1]),
            F.conv_transpose2d(x, taps, gain, stride=2),
            F.layer_norm(x.movedim(1, 3), (4,), gain, shift),
            F.group_norm(x, 2, gain, shift),
            F.linear(x.movedim(1, 3), taps[:, :, 0, 1], gain),
            F.batch_norm(x, torch.zeros(4), torch.ones(4)) * gain.view(4, 1, 1),
        )


def test_weights_may_be_computed(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    compare(cpp_runtime, Computed(), tmp_path, torch.randn(2, 4, 6, 7))


class Composed(nn.Module):
    """Operators that become several calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(9)
        self.weight = nn.Parameter(torch.rand(9))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute each, alone."""
        mask = torch.ones(6, 9, dtype=torch.bool).tril()
        queries, keys = x.transpose(2, 3), x[:, :2].transpose(2, 3)
        return (
            self.norm(x),
            F.rms_norm(x, (6, 9), eps=1e-3),
            torch.addcmul(x, x, self.weight, value=0.5),
            torch.lerp(x, self.weight.expand_as(x), 0.3),
            F.glu(x, 1),
            x.var(1),
            x.std((2, 3), keepdim=True),
            x.var(dim=-1, correction=0),
            x.amin((1, 3)),
            torch.where(mask, x, -1.0),
            x.masked_fill(mask, float("-inf")).softmax(-1),
            x.masked_fill(mask, 2.0),
            x.log().masked_fill(~mask, 0.0).masked_fill(mask, 1.0),
            torch.where(mask, 0.5, x) + torch.where(mask, x * 3, x[:1, :1]),
            F.interpolate(x, (11, 5), mode="bicubic"),
            F.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True),
            F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
            F.scaled_dot_product_attention(x, x, x, is_causal=True),
            F.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, :6]),
            F.scaled_dot_product_attention(queries, keys, keys, enable_gqa=True),
        )


def test_operators_of_several_calls(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    compare(cpp_runtime, Composed(), tmp_path, torch.randn(2, 4, 6, 9))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda x: torch.einsum("nii,j->nj", x, x[0, 0]), "a diagonal"),
        (lambda x: F.dropout(x, 0.5, training=True) + 1, "by chance"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1), "by chance"),
        (
            lambda x: F.scaled_dot_product_attention(
                x, x, x, attn_mask=torch.ones(4, 4).triu(1).bool()
            ),
            "allows some row nothing",
        ),
        (lambda x: x.unflatten(1, (2, 2, 1, 1, 1, 1, 1)) * 2, "more than 8 axes"),
        (lambda x: x.unflatten(1, (2, 2, 1, 1, 1, 1, 1)), "output .* more than 8 axes"),
        (lambda x: x.norm(p=3, dim=1), "a norm of order 3"),
        (lambda x: x.sum().softmax(0), "an axis of a tensor that has none"),
        (lambda x: x.mean().mean(0), "an axis of a tensor that has none"),
        (lambda x: x.sum().flip(0), "an axis of a tensor that has none"),
        (lambda x: x.sum().max(0)[0], "an axis of a tensor that has none"),
    ],
)
def test_what_would_be_computed_wrong_is_refused(step: Step, reason: str) -> None:
    with pytest.raises((CannotCapture, UnsupportedOp), match=reason):
        translate_module(Steps(step), torch.randn(2, 4, 4))


def test_an_input_of_more_axes_than_the_runtime_has_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOp, match=r"input x, .* more than 8 axes"):
        translate_module(Steps(lambda x: x.flatten()), torch.randn(2, 1, 1, 1, 1, 1, 1, 1, 3))
