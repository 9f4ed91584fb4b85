"""The emulated phone waits where the profiled one waited.

R-34-DG's stages, from the published times of its branches.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from r34dg_stages import DATA, Emulation, Stage, emulation, published, stages

from nnstretch.errors import BrokenFile
from nnstretch.predict import load_soc
from nnstretch.task import Task

FACT_SHEET = {
    "gpu_wait_us": (3719, 2724, 3667, 2675),
    "dsp_wait_us": (1345, 837, 1323, 1287),
    "enqueue_us": (388, 484, 336, 256),
    "dsp_us": (1733, 1321, 1659, 1287),
}
"""Means of two runs, rounded as printed there."""


def plan() -> list[Task]:
    """The tasks of the published plan.

    A stem, four stages of a DSP and a GPU branch that meet, a head.
    """
    tasks, before = [Task("s0.cpu#0", "s0.cpu", processor="cpu")], frozenset({"s0.cpu#0"})
    for number in range(1, 5):
        pair = [Task(f"s{number}.{p}#0", f"s{number}.{p}", before, p) for p in ("dsp", "gpu")]
        merge = Task(
            f"s{number}.merge#0", f"s{number}.merge", frozenset(task.name for task in pair), "cpu"
        )
        tasks, before = [*tasks, *pair, merge], frozenset({merge.name})
    return [*tasks, Task("s5.cpu#0", "s5.cpu", before, "cpu")]


@pytest.fixture(scope="module")
def profile() -> tuple[Stage, ...]:
    return stages()


@pytest.fixture(scope="module")
def phone(profile: tuple[Stage, ...]) -> Emulation:
    return published(profile, load_soc("mi9"), plan())


def test_the_profile_is_the_fact_sheets(profile: tuple[Stage, ...]) -> None:
    for name, values in FACT_SHEET.items():
        assert [getattr(stage, name) for stage in profile] == pytest.approx(values, abs=1)
    assert [stage.dsp_first for stage in profile] == [True, True, True, False]


def test_the_chips_hand_over_grows_with_what_is_converted_as_the_four_did(
    profile: tuple[Stage, ...],
) -> None:
    soc = load_soc("mi9")
    gpu, dsp = soc.processor("gpu"), soc.processor("dsp")
    convert = soc.processor_among("cpu", ("gpu",)).copy_in
    for stage, channels, side in zip(profile, (64, 96, 144, 304), (56, 56, 28, 14), strict=True):
        handed_over_us = gpu.enqueue_us + convert.cost_us(channels * side**2)
        assert handed_over_us == pytest.approx(stage.enqueue_us, rel=0.1)
    assert (gpu.asynchronous, dsp.asynchronous, dsp.blocks_host) == (True, False, False)


def test_every_stage_waits_as_the_phone_did(profile: tuple[Stage, ...], phone: Emulation) -> None:
    for stage, played in zip(profile, phone.played(phone.virtual()), strict=True):
        assert played.gpu_wait_us == pytest.approx(stage.gpu_wait_us, rel=0.1)
        assert played.dsp_wait_us == pytest.approx(stage.dsp_wait_us, rel=0.1)
        assert played.host_us == pytest.approx(stage.host_us, rel=0.1)
        assert played.last == "gpu"


def test_the_whole_lies_between_the_phones_two_runs(phone: Emulation) -> None:
    assert 20_800 < phone.virtual().makespan_us < 23_300


def test_the_queue_first_keeps_the_length_and_makes_the_call_wait(
    profile: tuple[Stage, ...], phone: Emulation
) -> None:
    first = published(profile, load_soc("mi9"), plan(), asynchronous_first=True)
    assert first.virtual().makespan_us == pytest.approx(phone.virtual().makespan_us, rel=0.002)
    waits = [played.dsp_wait_us for played in first.played(first.virtual())]
    assert waits == pytest.approx([stage.dsp_us for stage in profile])


def test_a_dsp_that_blocks_its_host_delays_what_is_enqueued_behind_it(
    profile: tuple[Stage, ...],
) -> None:
    soc = load_soc("mi9")
    listed = published(profile, soc, plan())
    blocking = tuple(replace(p, blocks_host=p.name == "dsp") for p in soc.processors)
    blocked = emulation(
        replace(soc, processors=blocking),
        listed.tasks,
        listed.durations_us,
        listed.handovers_us,
        listed.finish_us,
        False,
    )
    late_us = sum(stage.dsp_us for stage in profile if stage.dsp_first)
    assert blocked.virtual().makespan_us == pytest.approx(listed.virtual().makespan_us + late_us)


def test_real_threads_are_never_ahead(phone: Emulation) -> None:
    ends_us = {span.task.name: span.end_us for span in phone.virtual().spans}
    for trace in phone.real(2):
        assert all(span.end_us >= ends_us[span.task.name] - 1e-6 for span in trace.spans)


def test_a_profile_without_a_stage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_text("\n".join(DATA.read_text().splitlines()[:30]))
    with pytest.raises(BrokenFile, match="profile of R-34-DG"):
        stages(tmp_path / "k.csv")
