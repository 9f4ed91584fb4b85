"""Tiny networks for an accelerator."""

from __future__ import annotations

import json

import pytest

from nnstretch.cli import run_verb

TINY = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.head = nn.Linear(channels, 4)
        self.example_inputs = (torch.zeros(1, 3, 16, 16),)

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(self.body(x) + x)
        return self.head(x.mean((2, 3)))

def tiny():
    return Tiny()

class Outputs(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("fixed", torch.arange(6.0).reshape(2, 3))
        if wrong:
            with torch.no_grad():
                self.layer.weight[0, 0] = float("nan")

    def forward(self, x):
        y = torch.relu(self.layer(x))
        return y, y, self.fixed, x, y[:, 4:]

def several():
    return Outputs()

def without_numbers():
    return Outputs(True)

class OfBytes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.layer(x.float()))

def of_bytes():
    return OfBytes()

class Scaled(nn.Module):
    def forward(self, x, by):
        return torch.relu(x * by)

def scaled():
    return Scaled()

def odd():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.LPPool2d(2, 3))
"""


def answer(capsys: pytest.CaptureFixture[str], *argv: object) -> dict:
    status = run_verb("accelerate", [*map(str, argv), "--json"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, ""), err
    return json.loads(out)  # type: ignore[no-any-return]


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert run_verb("accelerate", [*map(str, argv), "--json"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    return err.strip().removeprefix("nnstretch: ")
