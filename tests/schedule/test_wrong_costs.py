"""Costs that are wrong are corrected by what tasks take, and a slow core is left."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
import support.scripts
from wrong_costs import leaving, mean_latency_us, workload

assert support.scripts.COMMANDS, "importing it makes the files of commands importable"
SEEDS = range(4)


def ratios(correction: bool) -> list[float]:
    """Mean latency after 50 tasks of each kind, over that with true costs."""
    values = []
    for seed in SEEDS:
        settings = workload("eft", 0.6, 150, seed)
        wrong = replace(settings, wrong_costs=3.0, correction=correction)
        values.append(mean_latency_us(wrong) / mean_latency_us(settings))
    return values


def test_eft_with_wrong_costs_is_near_eft_with_true_ones_after_fifty_tasks_of_each_kind() -> None:
    assert fmean(ratios(correction=True)) < 1.1
    assert fmean(ratios(correction=False)) > 1.2


@pytest.mark.slow
def test_a_core_that_becomes_slow_is_left_only_where_costs_are_corrected() -> None:
    for seed in SEEDS:
        settings = workload("eft", 0.5, 150, seed)
        shares = []
        for name in ("cpu", "gpu", "dsp", "npu"):
            corrected = leaving(settings, name, 4.0)
            if corrected.share_before > 0.2:
                believed = leaving(replace(settings, correction=False), name, 4.0)
                shares.append((corrected, believed))
        assert shares
        for corrected, believed in shares:
            assert corrected.share_after < corrected.share_before / 2
            assert corrected.share_after < believed.share_after
            assert corrected.slower < believed.slower
