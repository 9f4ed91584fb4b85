"""A module and its saved programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.saved_programs import Small
from torch import nn


@pytest.fixture(scope="module")
def module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Small().eval()


@pytest.fixture(scope="module")
def files(module: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pt2")
    found = {name: folder / f"{name}.pt2" for name in ("open", "fixed")}
    x = torch.zeros(2, 3, 15, 15)
    torch.export.save(
        torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)),
        found["open"],
    )
    torch.export.save(torch.export.export(module, (x[:1],)), found["fixed"])
    return found
