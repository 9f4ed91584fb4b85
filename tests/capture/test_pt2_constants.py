"""Constants of a saved program are computed up to a size, whatever the file says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.saved_programs import MODEL, nodes, refused, rewritten
from torch import nn

from nnstretch.capture import trace
from nnstretch.capture.pt2_file import read_pt2
from nnstretch.cli import main
from nnstretch.errors import CannotCapture

SIDE = 1 << 20


class Masked(nn.Module):
    """A mask that is made, written to and viewed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, 6)
        mask[1:3, 2:] = 0.5
        mask[2] += 1
        mask[:, 1:] *= 3
        return x * mask.t()[:, :3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masked") / "masked.pt2"
    torch.export.save(torch.export.export(Masked(), (torch.zeros(1, 6, 3),)), path)
    return path


def enlarge(tree: Any, is_honest: bool) -> None:
    """Ask for a mask of a tera-element; an honest file says so beside the call, too."""
    (call,) = (node for node in nodes(tree) if node["target"] == "torch.ops.aten.ones.default")
    call["inputs"][0]["arg"]["as_ints"] = [SIDE, SIDE]
    if is_honest:
        name = call["outputs"][0]["as_tensor"]["name"]
        said = tree["graph_module"]["graph"]["tensor_values"][name]
        said["sizes"] = [{"as_int": SIDE}, {"as_int": SIDE}]


def test_a_mask_is_computed(saved: Path) -> None:
    mask = torch.ones(4, 6)
    mask[1:3, 2:] = 0.5
    mask[2] += 1
    mask[:, 1:] *= 3
    (constant,) = read_pt2(saved).weights.values()
    torch.testing.assert_close(constant, mask.t()[:, :3])


@pytest.mark.parametrize("is_honest", [True, False])
def test_a_constant_that_fills_the_memory_is_not_computed(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_honest: bool
) -> None:
    path = rewritten(saved, tmp_path / "huge.pt2", {MODEL: lambda tree: enlarge(tree, is_honest)})
    refused(path, CannotCapture, "cannot capture huge", f"a constant of {SIDE**2} elements")
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_view_of_a_constant_that_a_file_says_is_small_is_not_computed(
    saved: Path, tmp_path: Path
) -> None:
    """Views cost nothing themselves, what reads them does."""

    def enlarge_view(tree: Any) -> None:
        (call,) = (node for node in nodes(tree) if node["target"].startswith("torch.ops.aten.t."))
        call["target"] = "torch.ops.aten.expand.default"
        sizes = {"as_ints": [SIDE, 1024, 4, 6]}
        call["inputs"].append({"name": "size", "arg": sizes, "kind": 1})

    path = rewritten(saved, tmp_path / "wide.pt2", {MODEL: enlarge_view})
    refused(path, CannotCapture, f"a constant of {SIDE * 1024 * 24} elements")


def test_a_sum_that_is_larger_than_what_it_adds_is_not_computed() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = torch.arange(SIDE)[:, None] + torch.arange(SIDE)
            return x + table[0, :3]

    with pytest.raises(CannotCapture, match=f"a constant of {SIDE**2} elements"):
        trace(Wide(), torch.zeros(1, 6, 3), "wide")
