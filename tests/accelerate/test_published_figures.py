"""Machines that were measured and published, as we describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import pytest
from judged import judged_table, status_of
from stcp920_claims import maps_in_ddr, spilled_maps
from support.chip_networks import bert, resnet50
from tpuv1_table import (
    SQUARES,
    convolution_chain,
    counter_row,
    longest_wait_us,
    matrix_spans_us,
    matrix_time_us,
    tpu_claims,
    tpu_rates,
)

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.engine_use import engine_use
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster


@pytest.mark.slow
def test_matrix_use_of_resnet50_never_falls_with_images_and_is_close_to_the_published() -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    published = {1: 19.1, 2: 28.6, 4: 51.8, 8: 77.7, 16: 78.6}
    uses: list[float] = []
    for images in published:
        made = schedule_cluster(resnet50(images), rates, ScheduleOptions())
        use = engine_use(made.placed, made.instructions, made.latency_us, rates)
        uses.append(100 * use["matrix"])
        matrix_us = sum(i.duration_us for i in made.instructions if i.engine == "matrix")
        assert use["matrix"] + use["matrix_fill"] == pytest.approx(matrix_us / made.latency_us)
    assert uses == sorted(uses)
    differences = [abs(use - theirs) for use, theirs in zip(uses, published.values(), strict=True)]
    assert fmean(differences) <= 15


@pytest.mark.slow
def test_bert_of_16_sentences_is_no_faster_for_each_than_of_8() -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    of_8, of_16 = (
        schedule_cluster(bert(count, 128), rates, ScheduleOptions()).latency_us / count
        for count in (8, 16)
    )
    assert of_16 >= of_8 * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("chip", [resnet50, lambda images: bert(images, 128)], ids=["A", "B"])
def test_only_named_spills_lie_in_ddr_beside_inputs_and_outputs(
    chip: Callable[[int], ChipGraph],
) -> None:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    schedule = schedule_cluster(chip(16), rates, ScheduleOptions())
    assert maps_in_ddr(schedule) == spilled_maps(schedule)
    in_ddr = schedule_cluster(chip(16), rates, ScheduleOptions("ddr"))
    assert len(maps_in_ddr(in_ddr)) > 20


# Jouppi et al., ISCA 2017, table 1 and 3: layers as equal squares of the published weights.
# Operations a second are those of these squares; LSTM1's matrices are 600x600 and smaller than them.
@pytest.mark.parametrize(
    ("name", "active", "stall", "shift", "not_matrix", "operations_per_s"),
    [
        ("MLP0", 12.7, 53.9, 15.9, 17.5, 12.3e12),
        ("MLP1", 10.6, 44.2, 13.4, 31.9, 9.7e12),
        ("LSTM0", 8.2, 58.1, 15.8, 17.9, 3.7e12),
        ("LSTM1", 10.5, 62.1, 17.1, 10.3, None),
    ],
)
def test_tpuv1_waits_for_weights_as_its_counters_say(
    name: str,
    active: float,
    stall: float,
    shift: float,
    not_matrix: float,
    operations_per_s: float | None,
) -> None:
    row = counter_row(name)
    measured = [share / (1 - not_matrix / 100) for share in (active, stall, shift)]
    assert row.counted == pytest.approx(measured)
    for ours, theirs in zip(row.ours, measured, strict=True):
        assert abs(ours - theirs) <= 6
    assert abs(row.ours[2] - measured[2]) <= 1
    if operations_per_s is not None:
        assert 1 <= row.operations_per_s / operations_per_s <= 1.25


def test_tpuv1_never_waits_for_weights_where_convolutions_use_them_often() -> None:
    # CNN0: 16 convolutions, 8 million weights, 8 boards of 19 x 19; its counter of stalls says 0.
    schedule = schedule_cluster(convolution_chain(), tpu_rates(), ScheduleOptions())
    assert len(matrix_spans_us(schedule)) == 16 * 9
    assert longest_wait_us() < 1e-9


def test_tpuv1_loads_600_by_600_matrices_in_18_us() -> None:
    assert matrix_time_us(256) == pytest.approx(18, rel=0.1)
    assert matrix_time_us(512) == pytest.approx(32, rel=0.1)


def test_every_claim_on_tpuv1_and_its_verdict_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [counter_row(name) for name in SQUARES]
    claims = tpu_claims(rows)
    assert len(claims) == 4 * 3 + 3 + 1 + 2
    assert all(claim.kept for claim in claims)
    assert status_of(claims) == 0
    spoilt = [replace(claims[0], shown="9.9", kept=False), *claims[1:]]
    assert status_of(spoilt) == 1
    assert capsys.readouterr().err == (
        "missed: TPUv1 MLP0, active, points from the counter, 9.9, limit -6.0 to 6.0\n"
    )
    table = judged_table(spoilt)
    assert table[0] == "17 of 18 are kept."
    assert table[4].endswith("| 9.9 | -6.0 to 6.0 | missed |")
    assert all(line.endswith("| kept |") for line in table[5:])
