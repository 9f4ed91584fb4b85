"""Saved programs, changed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export.pt2_archive import PT2ArchiveReader, PT2ArchiveWriter

from nnstretch.capture.pt2_file import read_pt2
from nnstretch.errors import NnstretchError

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
SAMPLES, CONSTANTS = "data/sample_inputs/model.pt", "data/constants/model_constants_config.json"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(x + y)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2)
        self.blocks = nn.Sequential(Block(16), Block(16), Block(16))
        self.head = nn.Linear(16, 5)
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0, 1.0, 0.25]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(x.flatten(2).mean(2).reshape(x.shape[0], -1)) * self.scale


def rewritten(source: Path, target: Path, changes: dict[str, Any]) -> Path:
    """The same archive with some records replaced, added, or edited as JSON by a function."""
    old = PT2ArchiveReader(str(source))
    with PT2ArchiveWriter(str(target)) as archive:
        names = [n for n in old.get_file_names() if not n.startswith(".data") and n != "byteorder"]
        for name in dict.fromkeys([*names, *changes]):
            content = old.read_bytes(name) if name in names else b""
            change = changes.get(name, content)
            archive.write_bytes(name, edited(content, change) if callable(change) else change)
    return target


def edited(content: bytes, change: Callable[[Any], None]) -> bytes:
    tree = json.loads(content)
    change(tree)
    return json.dumps(tree).encode()


def refused(path: Path, error: type[NnstretchError], *words: str) -> None:
    with pytest.raises(error) as caught:
        read_pt2(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def nodes(tree: Any) -> list[Any]:
    return tree["graph_module"]["graph"]["nodes"]  # type: ignore[no-any-return]


def a_size(tree: Any, text: str) -> None:
    """Replace the first symbolic size."""
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict) and "expr_str" in item:
            item["expr_str"] = text
            return
        stack.extend(
            item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
        )
    raise AssertionError("no symbolic size in the file")
