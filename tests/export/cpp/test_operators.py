"""Every operator of the C++ runtime computes what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_cpp,
    outputs_in_torch,
    translate_module,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from nnstretch.errors import CannotCapture, UnsupportedOp  # noqa: E402

pytestmark = pytest.mark.slow
Step = Callable[[torch.Tensor], torch.Tensor]


class Layers(nn.Module):
    """Layers side by side on one input, each an output."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all layers."""
        return tuple(layer(x) for layer in self.layers)


class Steps(nn.Module):
    """Functions side by side on one input, each an output."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute all functions."""
        return tuple(step(x) for step in self.steps)


def compare(runtime: CppRuntime, module: nn.Module, folder: Path, *inputs: torch.Tensor) -> None:
    """Compare C++ and PyTorch on some inputs."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            child.running_mean.uniform_(-0.5, 0.5)
            child.running_var.uniform_(0.5, 2.0)
    computed = outputs_in_cpp(runtime, module, inputs, folder)
    assert_close(computed, outputs_in_torch(module, inputs))


def test_convolutions(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    module = Layers(
        nn.Conv2d(6, 8, 3),
        nn.Conv2d(6, 13, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(6, 8, (1, 5), stride=(1, 3), padding=(2, 0)),
        nn.Conv2d(6, 8, 3, dilation=2, padding="same"),
        nn.Conv2d(6, 8, 4, padding="same"),
        nn.Conv2d(6, 300, 1),
        nn.Conv2d(6, 12, 3, groups=3, padding=1),
        nn.Conv2d(6, 6, 5, groups=6, padding=2, stride=2),
        nn.Conv2d(6, 6, 3, groups=6, padding=3, stride=3, dilation=2),
        nn.Conv2d(6, 12, 3, groups=6, padding=1),
        nn.Conv2d(6, 5, 7, padding=6),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2),
        nn.ConvTranspose2d(6, 4, 3, dilation=2, bias=False),
        nn.Sequential(nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Sequential(nn.BatchNorm2d(6), nn.SiLU(), nn.Conv2d(6, 8, 1), nn.Hardswish()),
        nn.Sequential(nn.Conv2d(6, 600, 1), nn.Conv2d(600, 4, 3, padding=1), nn.GELU()),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 6, 17, 23))


def test_one_axis(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    module = Layers(
        nn.Sequential(nn.Conv1d(4, 8, 9, stride=4), nn.MaxPool1d(4), nn.ReLU()),
        nn.Conv1d(4, 8, 3, padding=1, groups=4),
        nn.ConvTranspose1d(4, 2, 4, stride=2),
        nn.Sequential(nn.AvgPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(5)),
        nn.AdaptiveMaxPool1d(7),
        nn.Upsample(scale_factor=1.3),
        nn.Upsample(size=64, mode="linear"),
        nn.Upsample(scale_factor=2.5, mode="linear", align_corners=True),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 4, 101))


def test_pools_norms_and_resizing(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    module = Layers(
        nn.Sequential(nn.ConstantPad2d(1, float("-inf")), nn.MaxPool2d(3, 2)),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(3, 1, dilation=2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d((2, 3), ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AdaptiveAvgPool2d((3, 5)),
        nn.AdaptiveMaxPool2d(4),
        nn.GroupNorm(2, 6),
        nn.InstanceNorm2d(6, affine=True),
        nn.LayerNorm(19),
        nn.LayerNorm([15, 19], elementwise_affine=False),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=1.7, mode="bilinear"),
        nn.Upsample(size=(31, 7), mode="bilinear", align_corners=True),
        nn.Upsample(size=(40, 11)),
        nn.Upsample(size=(33, 8), mode="nearest-exact"),
        nn.Upsample(scale_factor=2.05),  # twice as many rows and columns, whatever the factor
        nn.Upsample(scale_factor=1.05, mode="bilinear"),  # as many
        nn.Upsample(scale_factor=(2.05, 1.05)),
        nn.Upsample(scale_factor=(1.05, 1.1), mode="bilinear"),
        nn.BatchNorm2d(6),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 6, 15, 19))


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
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(1, 4, 6, 6))


def test_arithmetic_and_reductions(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    row = torch.randn(9)
    column = torch.randn(4, 1, 1)
    module = Steps(
        lambda x: x + x.mean((2, 3), keepdim=True),
        lambda x: torch.sub(x, row, alpha=0.5),
        lambda x: 1.5 - x,
        lambda x: 2.0 / (x.abs() + 1),
        lambda x: x * column / 3 - 1,
        lambda x: torch.maximum(x, x.flip(3)) + torch.minimum(x, row),
        lambda x: (x * 2 + x).exp().sqrt().log(),
        lambda x: (x**2).sum(1),
        lambda x: x.amax((1, 2)),
        lambda x: F.normalize(x, dim=1),
        lambda x: x.clamp(-0.3, 0.4) + x.clamp(min=0.1) + x.clamp(max=0.2),
        lambda x: torch.rsqrt(x * x + 1) * -x,
        lambda x: x.mean(),
        lambda x: x.transpose(1, 3).mean(2),
        lambda x: torch.clamp(x, torch.tensor(-0.2), torch.tensor(0.3)),
        lambda x: torch.clamp(x, max=row.abs()) + torch.clamp(x, min=-row.abs()),
        lambda x: torch.max(x, row) - torch.min(x, x.flip(1)),
        lambda x: x.max(1)[0] + x.min(1, keepdim=True)[0] + x.max() - x.min(),
        lambda x: x.square() + x.norm(p=1, dim=1, keepdim=True),
        lambda x: x.norm(p=float("inf"), dim=(2, 3)) + x.norm(dim=(2, 3)),
        lambda x: x * torch.arange(9) + (torch.arange(9) > 4),
        lambda x: x.var(unbiased=False) + x.std(1, unbiased=False),
        written,
        lambda x: torch.ones_like(x) * 3 - torch.full_like(x, 0.5) + torch.zeros_like(x),
        lambda x: x.sin() + (3 * x).cos() - torch.erf(x) + x.abs().log1p() * torch.expm1(-x),
        lambda x: (x * 4).floor() + (x * 3).ceil() - (x * 2).trunc() + (x - 0.1).sign(),
        lambda x: ((x * 6).trunc() / 2).round(),
        lambda x: F.linear(x, row.expand(5, 9), torch.full((1,), 0.5)),
        lambda x: torch.addmm(torch.full((1,), 2.0), x[0, 0], x[1, 1].t()),
        lambda x: torch.hstack((x, x * 2)).mT + torch.hstack((row, row))[0],
        lambda x: x.clip(-0.5, 0.5) + x**0.5 + (x + 9) ** -0.5 + x**-1.0 + x**3,
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 4, 6, 9))


def test_local_response_norm(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    module = nn.Sequential(nn.LocalResponseNorm(5, alpha=0.1), nn.LocalResponseNorm(2, k=2.0))
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 7, 5, 6))


def written(x: torch.Tensor) -> torch.Tensor:
    """Return a copy into which numbers and a part of it are written."""
    y = x * 2
    y[:, 0] = 0.5
    y[..., 1:3] = -1.0
    y[:, 1:3] = x[:, :2]
    y[:, -1].zero_()
    return y


def waves(size: int) -> torch.Tensor:
    """Return what positions in rows and columns give, from whole numbers and no input."""
    grid = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(size), indexing="ij"))
    return grid.flip(0).float().sin()[1]


def test_shapes(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    module = Steps(
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x.permute(0, 2, 3, 1).reshape(2, -1, 8).transpose(1, 2),
        lambda x: x.flatten(1)[:, 3:50:4],
        lambda x: torch.cat((x[:, :3], x[:, 5:], x.flip(1)), 1),
        lambda x: torch.stack(x.chunk(4, 1), 2),
        lambda x: torch.cat([part[:, :1] * 2 for part in x.split([1, 3, 4], 1)], 3),
        lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
        lambda x: F.pad(x, (-1, 2, -2, 0)),
        lambda x: torch.roll(x, (2, -1), (2, 3)),
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_unshuffle(x, 2),
        lambda x: F.pixel_shuffle(x[0], 2),
        lambda x: x.narrow(2, 1, 3) + x.tensor_split((3,), 2)[1],
        lambda x: x.repeat(2, 1, 1, 2, 3),
        lambda x: F.channel_shuffle(x, 4),
        lambda x: x.repeat(1, 2, 1, 3),
        lambda x: x[:, 1].unsqueeze(1).expand(2, 3, 6, 4) + 1,
        lambda x: x.unbind(2)[3],
        lambda x: x + waves(4),
        lambda x: x.movedim(1, -1).squeeze(0),
        lambda x: x.swapaxes(1, 2).contiguous().view(2, 6, 32),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 8, 6, 4))


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


def replaced_part_of_a_value_that_is_read_again(x: torch.Tensor) -> torch.Tensor:
    tripled = x * 3
    return torch.slice_scatter(tripled, tripled[:, :, 1:3] + 1, 2, 3, 5) * tripled


def test_borders_windows_and_indices(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    indices = torch.tensor([0, 2, 4, 1, 1, 7])
    module = Steps(
        lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect"),
        lambda x: F.pad(x, (2, 1, 1, 3), mode="replicate"),
        lambda x: F.pad(x, (2, 1, 1, 3), mode="circular"),
        lambda x: F.pad(x[:, :, 0], (3, 2), mode="reflect"),
        lambda x: F.pad(x, (-4, 2, 0, 0), mode="reflect"),
        lambda x: F.pad(x, (2, -1, -3, 2), mode="reflect"),
        lambda x: F.pad(x, (-1, -1, 0, 0), mode="reflect") * 2,
        lambda x: F.unfold(x[0], 2),
        lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 2), stride=(2, 1)),
        lambda x: x.unfold(2, 3, 2) * 2,
        lambda x: x[:, indices] + 1,
        lambda x: x.index_select(3, indices[:3]),
        lambda x: torch.slice_scatter(x, x[:, :, 1:3] * 2, 2, 3, 5),
        lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, -2),
        lambda x: torch.slice_scatter(x * 3, x[:, :, 1:3], 2, 3, 5) + x * 3,
        replaced_part_of_a_value_that_is_read_again,
        lambda x: x.repeat_interleave(3, 2),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 8, 6, 5))


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
