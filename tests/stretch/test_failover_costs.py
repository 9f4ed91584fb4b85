"""What a sub-graph would take where it is not placed: in search results, plans and bundles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from nnstretch import capture, export, load_soc, search, stretch
from nnstretch.bundle.bundle import read_bundle
from nnstretch.bundle.manifest import Manifest
from nnstretch.errors import ProcessorFailed, UnknownName, UnsupportedOp
from nnstretch.kernel import Kernel
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.predictor import Estimate
from nnstretch.schedule import (
    Disturbances,
    Outage,
    Request,
    RequestScheduler,
    StaticPlacement,
    VirtualExecutor,
    enqueue_times_us,
    task_durations_us,
    task_graph,
)
from nnstretch.soc import Soc
from nnstretch.stretch import NetworkAnalysis, lower
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.cost.failover_costs import segment_alternatives, with_alternatives

SHAPE = (1, 3, 16, 16)
PLAN = Plan(
    "tiny",
    SHAPE,
    (
        Segment("input", "0", (Branch("cpu"),)),
        Segment("0", "1", (Branch("cpu", width=8), Branch("dsp", width=8))),
        Segment("1", "output", (Branch("cpu"),)),
    ),
)


def network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU()),
    ]
    return nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(16 * 256, 10))).eval()


class Without:
    """A predictor that never measured one kind of kernel."""

    def __init__(self, inner: object, kind: str) -> None:
        self._inner, self._kind = inner, kind
        self.processor = inner.processor  # type: ignore[attr-defined]

    def estimate(self, kernel: Kernel) -> Estimate:
        if kernel.kind == self._kind:
            raise UnsupportedOp(f"{kernel.name} ({kernel.kind}), {self.processor}, never measured")
        return self._inner.estimate(kernel)  # type: ignore[attr-defined, no-any-return]


def lacking(soc: Soc, processor: str, kind: str) -> Soc:
    return replace(
        soc, predictors={**soc.predictors, processor: Without(soc.predictors[processor], kind)}
    )


@pytest.fixture(scope="module")
def soc() -> Soc:
    return load_soc("mi9")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, soc: Soc) -> Manifest:
    module, path = network(), tmp_path_factory.mktemp("elsewhere") / "net.nns"
    lowered = lower(NetworkAnalysis(capture(module, torch.zeros(SHAPE), "tiny")), PLAN)
    trial = with_alternatives(estimate_plan(lowered, soc), lowered, soc)
    return (
        export(stretch(module, PLAN), PLAN, path, trial=trial, soc=soc)
        and read_bundle(path).manifest
    )


def test_a_bundle_says_what_each_sub_graph_takes_on_each_processor(
    bundle: Manifest, soc: Soc
) -> None:
    assert {frozenset(sub.predicted_us) for sub in bundle.subgraphs} == {
        frozenset(("cpu", "gpu", "dsp"))
    }
    assert all(sub.predicted_us.keys() == sub.error_us.keys() for sub in bundle.subgraphs)
    lowered = lower(NetworkAnalysis(capture(network(), torch.zeros(SHAPE), "tiny")), PLAN)
    branch, sub = (
        lowered.segments[1].branches[1],
        next(sub for sub in bundle.subgraphs if sub.name == "s1.dsp"),
    )
    gpu, size = soc.processor("gpu"), branch.output.elements
    copies_us = gpu.copy_in.cost_us(16 * 256) + gpu.copy_out.cost_us(size)
    slowdown = soc.contention_factor(frozenset(("cpu", "gpu")))
    assert sub.predicted_us["gpu"] == pytest.approx(
        copies_us
        + gpu.sync_us
        + slowdown * CostModel(soc).estimate_graph(branch.graph, "gpu").latency_us
    )
    assert (
        sub.predicted_us["dsp"] == estimate_plan(lowered, soc).segments[1].branches[1].latency_us
    ), "its own is the trial's"
    alone_us = CostModel(soc).estimate_graph(branch.graph, "cpu").latency_us + soc.processor(
        "cpu"
    ).copy_out.cost_us(size)
    assert sub.predicted_us["cpu"] == pytest.approx(alone_us), (
        "beside nobody: the other branch is on the CPU, too"
    )
    merge = next(sub for sub in bundle.subgraphs if sub.role == "merge")
    assert (
        merge.predicted_us["gpu"]
        > gpu.copy_in.cost_us(16 * 256) + gpu.copy_out.cost_us(16 * 256) + gpu.sync_us
        > merge.predicted_us["cpu"]
    )


@pytest.mark.parametrize("planned", ["cpu", "gpu"])
def test_a_network_takes_what_is_predicted_wherever_it_moves_as_a_whole(
    tmp_path: Path, soc: Soc, planned: str
) -> None:
    module = network()
    analysis = NetworkAnalysis(capture(module, torch.zeros(SHAPE), "tiny"))
    whole = {
        name: Plan("tiny", SHAPE, (Segment("input", "output", (Branch(name),)),))
        for name in ("cpu", "gpu")
    }
    lowered = {name: lower(analysis, plan) for name, plan in whole.items()}
    trials = {name: estimate_plan(network, soc) for name, network in lowered.items()}
    trial = with_alternatives(trials[planned], lowered[planned], soc)
    plan = whole[planned]
    manifest = export(stretch(module, plan), plan, tmp_path / "net.nns", trial=trial, soc=soc)
    (sub,) = manifest.subgraphs
    handed_us = enqueue_times_us(manifest, soc.processors)
    host_us = task_durations_us(manifest, soc.processors)
    for name, elsewhere in trials.items():
        key = sub.name, name
        assert task_durations_us(manifest)[key] == pytest.approx(elsewhere.latency_us)
        paid_us = handed_us.get(key, 0.0) + host_us[key]
        assert paid_us == pytest.approx(elsewhere.latency_us), "handing over is a part of it"


def test_what_a_segment_pays_anyway_is_not_paid_again(soc: Soc) -> None:
    lowered = lower(NetworkAnalysis(capture(network(), torch.zeros(SHAPE), "tiny")), PLAN)
    segment, cost_model = lowered.segments[1], CostModel(soc)
    free, paid = (segment_alternatives(segment, cost_model, us) for us in (0.0, 100.0))
    assert paid[0]["gpu"].latency_us == pytest.approx(free[0]["gpu"].latency_us - 100.0)
    assert paid[0]["dsp"] == free[0]["dsp"]
    assert paid[2] == free[2], "behind the meeting point"


def test_unmeasured_times_are_absent(soc: Soc) -> None:
    lowered = lower(NetworkAnalysis(capture(network(), torch.zeros(SHAPE), "tiny")), PLAN)
    poor = lacking(lacking(soc, "gpu", "conv"), "dsp", "concat")
    rows = [
        set(row)
        for segment in with_alternatives(estimate_plan(lowered, poor), lowered, poor).alternatives
        for row in segment
    ]
    assert rows == [{"dsp"}, {"dsp"}, {"cpu"}, {"cpu", "gpu"}, {"gpu", "dsp"}]


def test_search_results_carry_it_and_are_equal_without(soc: Soc) -> None:
    graph = capture(network(), torch.zeros(SHAPE), "tiny")
    trial = search(graph, soc, ("cpu", "dsp")).plans[0].trial
    assert [len(row) for row in trial.alternatives] == [
        len(s.branches) + (len(s.branches) > 1) for s in trial.segments
    ]
    assert trial == replace(trial, alternatives=())
    assert "elsewhere" not in repr(trial)


def served(manifest: Manifest, soc: Soc, lost: str) -> list[Request]:
    answers: list[Request] = []
    times_us = task_durations_us(manifest)
    clock = VirtualExecutor(
        soc.processors, times_us, disturbances=Disturbances(fails=(Outage(lost, 1.0),))
    )
    service = RequestScheduler(
        soc.processors,
        StaticPlacement(tuple(p.name for p in soc.processors)),
        clock,
        answers.append,
        times_us,
    )
    for number in range(3):
        service.submit(Request(number, task_graph(manifest, number)))
    while service.step() is not None:
        pass
    return answers


@pytest.mark.parametrize("lost", ["cpu", "dsp"])
def test_a_failed_processors_work_takes_what_is_predicted_elsewhere(
    bundle: Manifest, soc: Soc, lost: str
) -> None:
    answers = served(bundle, soc, lost)
    assert [answer.error for answer in answers] == [None] * 3
    moved = [sub for sub in bundle.subgraphs if sub.processor == lost]
    assert {answer.replaced for answer in answers} == {len(moved)}


def test_where_nobody_predicted_it_a_request_ends_with_one_error(
    bundle: Manifest, soc: Soc
) -> None:
    """On the virtual clock, which cannot know; threads would run it and take what it takes."""
    own_only = replace(
        bundle,
        subgraphs=tuple(
            replace(s, predicted_us={s.processor: s.predicted_us[s.processor]})
            for s in bundle.subgraphs
        ),
    )
    answers = served(own_only, soc, "dsp")
    assert [type(answer.error) for answer in answers] == [UnknownName] * 3
    assert not any(isinstance(answer.error, ProcessorFailed) for answer in answers)
