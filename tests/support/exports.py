"""A tiny branched network and its bundles, exported once for all tests.

A conversion to LiteRT takes seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.export import single_file as single
from nnstretch.export import subgraph_files as made
from nnstretch.export.bundle import ExportedBundle, export_bundle
from nnstretch.export.litert import convert as litert
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import stretch

SHAPE = (1, 3, 16, 16)
CALIBRATION = 20


class Tiny(nn.Module):
    """A stem that ends in pooling, whose scale is tied to what is before it; two blocks; a head."""

    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), end)
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU())
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.max_pool2d(self.body(self.stem(x)), 2).flatten(1))


BRANCHES = (Branch("cpu", width=16), Branch("dsp", width=8))
PLAN = Plan(
    "tiny",
    SHAPE,
    (
        Segment("input", "stem", (Branch("cpu"),)),
        Segment("stem", "body", BRANCHES),
        Segment("body", "output", (Branch("cpu"),)),
    ),
)


def network(end: nn.Module, plan: Plan) -> nn.Module:
    torch.manual_seed(0)
    original = Tiny(end)
    for _ in range(20):
        original(torch.randn(4, *SHAPE[1:]))
    return stretch(original.eval(), plan).eval()


@cache
def tiny() -> nn.Module:
    return network(nn.MaxPool2d(2), PLAN)


def images(count: int, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SHAPE, generator=generator) for _ in range(count)]


@dataclass(frozen=True)
class Written:
    exported: ExportedBundle
    bundle: Bundle

    def data(self, name: str) -> bytes:
        return next(
            self.bundle.files[s.file] for s in self.bundle.manifest.subgraphs if s.name == name
        )


_converted: dict[object, tuple[object, bytes]] = {}


def once(convert: Callable[..., bytes]) -> Callable[..., bytes]:
    """The same conversion, done the first time only.

    Float and int8 begin with the same float files.
    """

    def remembered(what: object, *others: object) -> bytes:
        key = (
            convert,
            id(what) if isinstance(what, nn.Module) else forms(what),
            *map(forms, others),
        )
        if key not in _converted:
            _converted[key] = (
                what,
                convert(what, *others),
            )  # kept with it: an id is taken only while its owner lives
        return _converted[key][1]

    return remembered


def forms(what: object) -> object:
    return (
        tuple(tuple(one.shape) for one in what)
        if isinstance(what, Sequence) and not isinstance(what, str)
        else what
    )


@contextmanager
def conversions_shared() -> Iterator[None]:
    with (
        patch.object(made, "to_litert", once(litert.to_litert)),
        patch.object(made, "to_litert_concat", once(litert.to_litert_concat)),
        patch.object(single, "to_litert", once(litert.to_litert)),
    ):
        yield


def written(format: str, int8: bool = False) -> Written:
    """The bundle of `tiny()`; int8 is calibrated on `images(CALIBRATION)`."""
    return _written(format, int8)


@cache
def _written(format: str, int8: bool) -> Written:
    with tempfile.TemporaryDirectory() as folder, conversions_shared():
        path = Path(folder) / "tiny.nns"
        done = export_bundle(
            ExportRequest(tiny(), PLAN, format, int8, iter(images(CALIBRATION)) if int8 else None),
            path,
        )
        return Written(done, read_bundle(path))
