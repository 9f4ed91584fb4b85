"""The networks of the exchange experiment: wide ones are searched, narrow ones of their form trained.

A stock network divides the side by 32; of 32 pixels one position would be left. Here a stem of one
strided convolution keeps 16 of 32 pixels, as many in share as 56 of 112, which the first stage of a
stock network has at 224. The narrow network has all channel numbers over a divisor, layer by layer:
lowering a plan on a narrow network would round its inner widths to other shares.
"""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.regnet import BlockParams, RegNet
from torchvision.models.resnet import BasicBlock

KEPT_CHANNELS = (3,)
"""Inputs that are images, not features."""


class BasicBlocks(nn.Module):
    """A network of basic blocks, two in each of four stages."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.layer1 = basic_stage(width, width, 1)
        self.layer2 = basic_stage(width, 2 * width, 2)
        self.layer3 = basic_stage(2 * width, 4 * width, 2)
        self.layer4 = basic_stage(4 * width, 8 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def basic_stage(before: int, width: int, stride: int) -> nn.Sequential:
    """Return two basic blocks; where the first changes the size, a projection passes it by."""
    shortcut = None
    if stride > 1:
        shortcut = nn.Sequential(
            nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
        )
    return nn.Sequential(BasicBlock(before, width, stride, shortcut), BasicBlock(width, width))


def resnet(num_classes: int = 500) -> nn.Module:
    """Build ResNet-18's blocks."""
    return BasicBlocks(64, num_classes)


def regnet(num_classes: int = 500) -> nn.Module:
    """Build RegNetX-3.2GF's widths in 9 blocks instead of 25."""
    stages = BlockParams(
        depths=[1, 2, 4, 2],
        widths=[96, 192, 432, 1008],
        group_widths=[48] * 4,
        bottleneck_multipliers=[1.0] * 4,
        strides=[1, 2, 2, 2],
    )
    return RegNet(stages, num_classes=num_classes)


def narrow(module: nn.Module, divisor: int) -> nn.Module:
    """Replace the layers by ones with all channels but images and classes over a divisor.

    Groups stay as many, so they narrow, too. Returns the module.
    """
    for name, layer in module.named_children():
        if isinstance(layer, nn.Conv2d):
            setattr(module, name, narrow_convolution(layer, divisor))
        elif isinstance(layer, nn.BatchNorm2d):
            setattr(module, name, nn.BatchNorm2d(exact(layer.num_features, divisor)))
        elif isinstance(layer, nn.Linear):
            width = exact(layer.in_features, divisor)
            setattr(module, name, nn.Linear(width, layer.out_features))
        else:
            narrow(layer, divisor)
    return module


def narrow_convolution(layer: nn.Conv2d, divisor: int) -> nn.Conv2d:
    """Return a convolution with channels over a divisor."""
    images = layer.in_channels in KEPT_CHANNELS
    width_in = layer.in_channels if images else exact(layer.in_channels, divisor)
    return nn.Conv2d(
        width_in,
        exact(layer.out_channels, divisor),
        layer.kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        groups=layer.groups,
        bias=layer.bias is not None,
    )


def exact(channels: int, divisor: int) -> int:
    """Return channels over a divisor, which must divide them."""
    assert channels % divisor == 0, f"{channels} channels over {divisor}"
    return channels // divisor
