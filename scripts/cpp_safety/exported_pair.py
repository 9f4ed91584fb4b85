"""Two small exported networks, linked into the program of many threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from nnstretch.capture.torch_export import trace
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.package_data import package_data

SOURCES = ("stress", "stress_subjects", "bad_vendors")
BUILD_S = 3600
"""Of a build with a sanitizer, which a busy machine takes long for."""


class Blocks(nn.Module):
    """Convolutions of every kind, pools, a sum and a join."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pointwise = nn.Conv2d(32, 32, 1)
        self.wide = nn.Conv2d(32, 16, 5, padding=2)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.head = nn.Conv2d(32, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the network."""
        x = torch.relu(self.stem(x))
        x = torch.relu(self.pointwise(self.depthwise(x)) + x)
        small = nn.functional.avg_pool2d(x, 2)
        return self.head(torch.cat((self.wide(x), self.up(small)), 1))  # type: ignore[no-any-return]


def pair() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return both networks with an input: convolutions, and products of maps with norms."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return {
        "blocks": (Blocks(), torch.zeros(1, 3, 32, 32)),
        "sentence": (layer, torch.zeros(1, 12, 32)),
    }


def link_stress(folder: Path, runtime: Path, flags: Sequence[str] = ()) -> list[str]:
    """Export both networks and link the program of many threads; return it, then their weights.

    `runtime` is the folder where the runtime was built with the same flags.
    """
    weights: list[str] = []
    folder.mkdir()
    sources = [str(package_data("cpp") / "tests" / f"{name}.cpp") for name in SOURCES]
    for name, (module, x) in pair().items():
        captured = trace(module.eval(), (x,), name)
        write_project(translate(captured.graph, captured.weights), folder / name)
        weights.append(str(folder / name / "weights.bin"))
        # Both headers have the same name; each source finds its own beside it.
        sources.append(str(folder / name / "network.cpp"))
    includes = [f"-I{package_data('cpp') / part}" for part in ("include", "src")]
    models = ["-DFIRST=nns_model_blocks", "-DSECOND=nns_model_sentence"]
    libraries = (runtime / "libraries.txt").read_text().split()
    archive, program = str(runtime / "libnnstretch_runtime.a"), str(folder / "stress_pair")
    command = ["g++", "-std=c++17", "-O1", *flags, *includes, *models, *sources, archive]
    run_tool([*command, *libraries, "-lpthread", "-ldl", "-o", program], folder, BUILD_S)
    return [program, *weights]
