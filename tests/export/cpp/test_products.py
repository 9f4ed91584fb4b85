"""Attention, products and norms: fused only where shapes and readers allow."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    cpp_runtime,  # noqa: F401
)
from support.cpp_layers import Layers, compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.slow


class Attention(nn.Module):
    """Products of two activations in all forms."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(24, 72)
        self.out = nn.Linear(24, 24)
        self.bias = nn.Parameter(torch.randn(4, 11, 11))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute attention twice, and products."""
        q, k, v = self.qkv(x).view(2, 11, 3, 4, 6).permute(2, 0, 3, 1, 4).unbind(0)
        plain = F.scaled_dot_product_attention(q, k, v)
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, scale=0.3)
        scores = (q * 0.5 @ k.transpose(-2, -1) + self.bias).softmax(-1)
        joined = torch.einsum("bhij,bhjd->bihd", scores, v)
        mixed = torch.einsum("bhij,bh->bij", scores, v[:1, :, 0, 0])
        pairs = torch.bmm(x, x.transpose(1, 2))
        residual = x + self.out(plain.transpose(1, 2).reshape(2, 11, 24))
        vector = x @ x[0, 0]
        return plain, masked, joined, mixed, pairs, F.gelu(residual), vector


def test_attention(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    compare(cpp_runtime, Attention(), tmp_path, torch.randn(2, 11, 24))


class TurnedProducts(nn.Module):
    """Products whose results are read with rows and columns exchanged, and what could be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute an activation, sums and a batch norm behind turned products."""
        square = x[:, :, :4]

        def turned() -> torch.Tensor:
            return torch.einsum("bnm,bcm->bcn", x.softmax(-1), x[:, :3])

        return (
            turned().relu(),
            turned() + x[:, :3, :4],
            turned().reshape(2, 2, 6) + x[:, :2, :6].contiguous(),
            torch.einsum("bnm,bcm->bcn", square, square + 1) + square.contiguous(),
            self.norm(torch.einsum("nc,oc->on", square[0], self.weight)),
            self.norm(torch.einsum("nc,oc->no", square[0], self.weight)),
        )


def test_nothing_is_fused_into_a_product_that_is_read_turned(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    module = TurnedProducts()
    nn.init.uniform_(module.norm.running_mean, -1, 1)
    nn.init.uniform_(module.norm.weight, -1, 1)
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 4, 6))


@pytest.mark.parametrize("rows", [1, 3, 4, 40])
def test_products_of_few_and_many_rows(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
    rows: int,
) -> None:
    torch.manual_seed(0)
    module = Layers(nn.Linear(300, 17), nn.Linear(300, 600, bias=False), nn.Linear(300, 1))
    compare(cpp_runtime, module, tmp_path, torch.randn(rows, 300))


class NormsThatFoldNowhere(nn.Module):
    """Batch norms behind what has no rows of weights for their channels; a sum that broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(6) for _ in range(3)])
        self.row_norms = nn.ModuleList([nn.BatchNorm1d(6) for _ in range(3)])
        self.linear = nn.Linear(6, 6)
        self.square = nn.Parameter(torch.randn(6, 6))
        self.conv = nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute each, alone."""
        pooled = x.mean((2, 3), keepdim=True)
        rows = x[:, :, 0, :6]
        return (
            self.norms[0](F.max_pool2d(x, 2)),
            self.norms[1](x * 2),
            self.norms[2](F.relu(x) + 1),
            self.row_norms[0](self.linear(rows)),
            self.row_norms[1](rows[0] @ self.square),
            self.row_norms[2](self.linear(rows[0])),
            self.conv(pooled) + x,
        )


def test_norms_and_sums_fold_only_where_shapes_agree(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    compare(cpp_runtime, NormsThatFoldNowhere(), tmp_path, torch.randn(2, 6, 6, 8))
