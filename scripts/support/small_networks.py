"""Networks of the families that are studied, as deep, but for images of 32 pixels.

For `scripts/training_ablation`: `scripts/support/small_networks.py:regnet?num_classes=60`. A stock network divides
the side by 32, so that of a small image one position is left, and half of the network sees nothing
else (RegNetX-400MF then learns `shapes` in 12 epochs not at all).
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.regnet import BlockParams, RegNet


def regnet(num_classes: int = 10) -> nn.Module:
    """RegNetX-400MF's depths, widths and group width.

    The first stage keeps the size, so 2x2 is left of 32x32.
    """
    stages = BlockParams(
        depths=[1, 2, 7, 12],
        widths=[32, 64, 160, 400],
        group_widths=[16] * 4,
        bottleneck_multipliers=[1.0] * 4,
        strides=[1, 2, 2, 2],
    )
    return RegNet(
        stages, num_classes=num_classes, norm_layer=partial(nn.BatchNorm2d, eps=1e-5, momentum=0.1)
    )


def efficientnet(num_classes: int = 10) -> nn.Module:
    """EfficientNet-B0's blocks at half the channels; two of its five strides are left."""
    wide = [(1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 1, 24, 40, 2), (6, 3, 2, 40, 80, 3)]
    wider = [(6, 5, 1, 80, 112, 3), (6, 5, 1, 112, 192, 4), (6, 3, 1, 192, 320, 1)]
    settings = [MBConvConfig(*row, width_mult=0.5) for row in (*wide, *wider)]
    return EfficientNet(
        settings, dropout=0.2, stochastic_depth_prob=0.0, num_classes=num_classes, last_channel=640
    )
