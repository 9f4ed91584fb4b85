"""Batches that clusters do not share evenly, constants of a batch, and outputs nobody computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_networks import answer




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
