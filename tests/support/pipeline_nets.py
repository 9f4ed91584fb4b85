"""Networks for tests of pipelines, loaded as FILE.py:FACTORY, too."""

from __future__ import annotations

import torch
from torch import nn


class Reference(nn.Module):
    """Two inputs; a value that skips a stage, and one output of a tuple: out = 4d + 3e + 22."""

    def forward(self, d: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        o1, o2 = d + 1, d - 2
        o3 = torch.split(torch.cat([o1, o2], 0), 3, 0)[0] + 2
        n = ((o3 + 2) + e) + 3
        return n * 3 + o2


class Detector(nn.Module):
    """A backbone whose maps of two sizes go to two heads: boxes and scores, as an SSD has."""

    input_shape = (3, 32, 32)

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def block(cin: int, cout: int, stride: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()
            )

        self.stem, self.body, self.deep = (
            block(3, width, 2),
            block(width, 2 * width, 2),
            block(2 * width, 2 * width, 2),
        )
        self.boxes = nn.ModuleList(
            [nn.Conv2d(2 * width, 8, 3, 1, 1), nn.Conv2d(2 * width, 8, 3, 1, 1)]
        )
        self.scores = nn.ModuleList(
            [nn.Conv2d(2 * width, 6, 3, 1, 1), nn.Conv2d(2 * width, 6, 3, 1, 1)]
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shallow = self.body(self.stem(x))
        maps = [shallow, self.deep(shallow)]
        boxes = [
            head(m).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))
            for head, m in zip(self.boxes, maps, strict=True)
        ]
        scores = [
            head(m).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 3))
            for head, m in zip(self.scores, maps, strict=True)
        ]
        return torch.cat(boxes, 1), torch.cat(scores, 1)


class Ssd(nn.Module):
    """Backbone and heads of torchvision's SSDLite, without the post-processing that looks at
    values.
    """

    input_shape = (3, 320, 320)

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection import ssdlite320_mobilenet_v3_large

        whole = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
        self.backbone, self.head = whole.backbone, whole.head

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(list(self.backbone(x).values()))
        return found["bbox_regression"], found["cls_logits"]
