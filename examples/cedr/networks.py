"""Stand-ins for the networks of CEDR's experiments, whose definitions were not published.

detector  nine convolutions as in Tiny YOLOv2 (Redmon and Farhadi, 2016), 416 px
vgg       VGG-16 (Simonyan and Zisserman, 2014), 224 px
speech    M5 for one second of speech at 8 kHz (Dai et al., 2016)

    nnstretch inspect examples/cedr/networks.py:detector --input-shape 1,3,416,416
"""

from __future__ import annotations

from torch import nn

INPUTS = {"detector": (1, 3, 416, 416), "vgg": (1, 3, 224, 224), "speech": (1, 1, 8000)}
DETECTOR_WIDTHS = (16, 32, 64, 128, 256, 512)
VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
BOXES, CLASSES = 5, 20


def conv_relu(width_in: int, width_out: int, kernel: int = 3) -> list[nn.Module]:
    """Return a convolution that keeps the size, and its activation."""
    return [nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2), nn.ReLU()]


def detector() -> nn.Module:
    """Return the stand-in for object detection; its last pooling of stride 1 is left out."""
    layers: list[nn.Module] = []
    width = 3
    for wider in DETECTOR_WIDTHS:
        layers += conv_relu(width, wider)
        if wider != DETECTOR_WIDTHS[-1]:
            layers.append(nn.MaxPool2d(2))
        width = wider
    layers += [*conv_relu(width, 1024), *conv_relu(1024, 1024)]
    layers.append(nn.Conv2d(1024, BOXES * (5 + CLASSES), 1))
    return nn.Sequential(*layers).eval()


def vgg() -> nn.Module:
    """Return VGG-16."""
    layers: list[nn.Module] = []
    width = 3
    for wider, depth in VGG_STAGES:
        for _ in range(depth):
            layers += conv_relu(width, wider)
            width = wider
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, 4096)]
    layers += [nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers).eval()


def speech() -> nn.Module:
    """Return M5, four convolutions over time."""
    widths = ((1, 128, 80, 4), (128, 128, 3, 1), (128, 256, 3, 1), (256, 512, 3, 1))
    layers: list[nn.Module] = []
    for width_in, width_out, kernel, stride in widths:
        layers += [nn.Conv1d(width_in, width_out, kernel, stride), nn.BatchNorm1d(width_out)]
        layers += [nn.ReLU(), nn.MaxPool1d(4)]
    layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*layers).eval()
