"""Every operator of the C++ runtime computes what PyTorch computes."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    cpp_runtime,  # noqa: F401
)
from support.cpp_layers import Layers, Steps, compare  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.slow


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
        nn.Upsample(size=64, mode="nearest-exact"),
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
        nn.Upsample(scale_factor=(1.05, 2.05), mode="nearest-exact"),
        nn.Upsample(scale_factor=2.05),  # twice as many rows and columns, whatever the factor
        nn.Upsample(scale_factor=1.05, mode="bilinear"),  # as many
        nn.Upsample(scale_factor=(2.05, 1.05)),
        nn.Upsample(scale_factor=(1.05, 1.1), mode="bilinear"),
        nn.BatchNorm2d(6),
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 6, 15, 19))


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
        # Both repeated along the axis that is summed.
        lambda x: x[..., :1].expand(2, 4, 6, 9) @ x[:, :, :1].expand(2, 4, 9, 9),
        lambda x: x.clip(-0.5, 0.5) + x**0.5 + (x + 9) ** -0.5 + x**-1.0 + x**3,
    )
    compare(cpp_runtime, module, tmp_path, torch.randn(2, 4, 6, 9))


def test_means_of_many_pixels_of_one_sign(cpp_runtime: CppRuntime, tmp_path: Path) -> None:  # noqa: F811
    module = Steps(
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool1d(x.flatten(2)[..., 1:], 1),
    )
    compare(cpp_runtime, module, tmp_path, torch.full((1, 2, 700, 700), 1.1))


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
