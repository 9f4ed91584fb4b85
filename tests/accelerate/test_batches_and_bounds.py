"""Batches that clusters do not share evenly, constants of a batch, and outputs nobody computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_networks import answer


WIDENED = """

class Widened(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.example_inputs = (torch.zeros(1, 8),)

    def forward(self, x):
        return torch.relu(self.layer(torch.cat([x, torch.ones(x.shape[0], 8)], 1)))

def make():
    return Widened()
"""


@pytest.mark.parametrize(("batch", "iterations"), [(1, 1), (5, 2), (8, 2), (9, 3)])
def test_every_input_crosses_ddr_once_where_clusters_do_not_share_a_batch_evenly(
    capsys: pytest.CaptureFixture[str], networks: Path, batch: int, iterations: int
) -> None:
    asked = (f"{networks}:tiny", "--accelerator", "stcp920", "--per-cluster", 1, "--batch")
    alone, together = answer(capsys, *asked, 1), answer(capsys, *asked, batch)
    assert together["iterations"] == iterations
    for key in ("ddr_bytes", "weights_ddr_bytes"):
        assert together[key] == batch * alone[key] > 0


def test_a_cluster_computes_more_than_its_share_in_one_pass(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    asked = (f"{networks}:tiny", "--accelerator", "stcp920", "--per-cluster", 3, "--batch")
    once, twice = answer(capsys, *asked, 3), answer(capsys, *asked, 5)
    assert (twice["iterations"], twice["ddr_bytes"]) == (1, 2 * once["ddr_bytes"])


def test_constants_of_as_many_rows_as_inputs_are_those_of_the_batch_that_is_carried_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "wide.py").write_text(WIDENED, encoding="utf-8")
    asked = (f"{tmp_path}/wide.py:make", "--accelerator", "stcp920", "--batch", 64, "--check")
    result = answer(capsys, *asked)
    assert result["per_cluster"] > 1, "smaller ones were captured after it"
    assert result["max_abs_error"] == pytest.approx(0, abs=1e-5)
