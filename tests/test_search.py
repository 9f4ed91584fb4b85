"""Search: the optimum is proven against brute force, bounds hold, and prices are those of the built plan."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import BadInput, NoPlan, UnknownName, UnsupportedOp
from nnstretch.graph import Graph, Node, Ref, TensorSpec, Value, Weight
from nnstretch.protocols import Estimate, Kernel
from nnstretch.soc import Link, Processor, Soc
from nnstretch.stretch.constraints import Limits, constraints_of
from nnstretch.stretch.edges import Choices
from nnstretch.stretch.labels import Bounds, best_labels
from nnstretch.stretch.lower import Stretcher, lower
from nnstretch.stretch.optimum import Net, search
from nnstretch.stretch.pricing import Pricer, price
from nnstretch.stretch.space import Space
from nnstretch.structure.cuts import Cut
from nnstretch.work import macs_of


@dataclass(frozen=True)
class Rate:
    """A predictor of one number a processor: MACs and bytes per microsecond."""

    processor: str
    macs_per_us: float

    def estimate(self, kernel: Kernel, /) -> Estimate:
        if kernel.kind == "exotic":
            raise UnsupportedOp(f"{self.processor}: {kernel.name} was never measured")
        us = 1.0 + kernel.macs / self.macs_per_us + (kernel.read_elements + kernel.write_elements) / 50_000
        return Estimate(us, us / 10)


def chip(fixed_us: float = 5.0) -> Soc:
    cpu = Processor("cpu", "cpu", 1)
    dsp = Processor("dsp", "dsp", 2, Link(fixed_us, 0.05), Link(fixed_us, 0.05), sync_us=2.0)
    rates = {"cpu": Rate("cpu", 20_000.0), "dsp": Rate("dsp", 24_000.0)}
    return Soc("toy", (cpu, dsp), "int8", rates, Link(1.0, 0.02), {frozenset({"cpu", "dsp"}): 1.1})


def residual(blocks: tuple[tuple[int, int], ...], px: int = 16) -> Graph:
    """A stem, then stages of (width, residual blocks), then a classifier; written without PyTorch."""
    nodes: list[Node] = []
    weights: list[Weight] = []

    def layer(name: str, source: str, cin: int, cout: int, k: int, stride: int, size: int) -> str:
        weight = Weight(f"{name}.weight", TensorSpec((cout, cin, k, k)))
        weights.append(weight)
        out = TensorSpec((1, cout, size, size))
        args = (Ref(source), Ref(weight.name), None, (stride, stride), (k // 2, k // 2), (1, 1), 1)
        nodes.append(Node(name, "conv2d", args, (out,), name, macs=macs_of("conv2d", args, out, {weight.name: weight.spec})))
        nodes.append(Node(f"{name}_relu", "relu", (Ref(name),), (out,), name))
        return f"{name}_relu"

    at = layer("stem", "x", 3, 16, 3, 1, px)
    cin = 16
    for s, (width, depth) in enumerate(blocks):
        px = px // 2
        at = layer(f"stage{s}.0", at, cin, width, 3, 2, px)
        for b in range(1, depth):
            body = layer(f"stage{s}.{b}", at, width, width, 3, 1, px)
            total = Node(f"add{s}_{b}", "add.Tensor", (Ref(body), Ref(at)), (TensorSpec((1, width, px, px)),), f"stage{s}.{b}")
            nodes.append(total)
            at = total.name
        cin = width
    nodes.append(Node("pool", "mean.dim", (Ref(at), (2, 3)), (TensorSpec((1, cin)),), "pool"))
    weights.append(Weight("fc.weight", TensorSpec((10, cin))))
    args = (Ref("pool"), Ref("fc.weight"), None)
    nodes.append(Node("fc", "linear", args, (TensorSpec((1, 10)),), "fc", macs=10 * cin))
    return Graph(
        "toy", (Value("x", TensorSpec((1, 3, 2 ** len(blocks) * px, 2 ** len(blocks) * px))),), tuple(weights), tuple(nodes), ("fc",)
    )


NETWORK = residual(((32, 3), (64, 2)))


def brute_force(net: Net, bounds: Bounds) -> float:
    """Every path through every cut and width, by recursion without any pruning."""
    last = len(net.cuts) - 1

    def best(i: int, width: int, latency: float, macs: int, params: int) -> float:
        if i == last:
            return latency if bounds.min_macs <= macs <= bounds.max_macs and params >= bounds.min_params else math.inf
        found = math.inf
        for j, choices in net.edges.get((i, width), ()):
            for k in range(len(choices)):
                reached = best(
                    j, int(choices.width[k]), latency + choices.latency_us[k], macs + int(choices.macs[k]), params + int(choices.params[k])
                )
                found = min(found, reached)
        return found

    return best(0, min(w for i, w in net.edges if i == 0), 0.0, 0, 0)


@pytest.fixture(scope="module")
def small_net() -> Net:
    limits = Limits(alpha=2.0, beta=1.5, main_macs=0.2, segment_macs=0.5, min_depth=0.3, min_width=0.5)
    net = Net(Space(Stretcher(residual(((16, 2), (32, 2)))), Pricer(chip(0.5)), ("cpu", "dsp"), limits, 3))
    net.explore(None)
    return net


@pytest.mark.parametrize("ratio", [0.0, 0.8, 0.95, 1.0, 1.2])
def test_dynamic_programming_finds_what_brute_force_finds(small_net: Net, ratio: float) -> None:
    macs = small_net.space.stretcher.graph.macs
    bounds = Bounds(ratio * macs, math.inf, 0.0)
    expected = brute_force(small_net, bounds)
    labels, bound_us, complete = best_labels(small_net.cuts, small_net.edges, bounds, 1)
    if expected == math.inf:
        assert labels == []
        return
    assert complete
    assert labels[0].latency_us == pytest.approx(expected)
    assert bound_us == pytest.approx(labels[0].latency_us)


@st.composite
def edge_tables(draw: st.DrawFn) -> tuple[tuple[Cut, ...], dict[tuple[int, int], list[tuple[int, Choices]]]]:
    """A random net of cuts, widths and choices, unlike any network."""
    last = draw(st.integers(1, 4))
    widths = range(1, draw(st.integers(1, 3)) + 1)
    edges: dict[tuple[int, int], list[tuple[int, Choices]]] = {}
    for i, width in itertools.product(range(last), widths):
        if i == 0 and width > 1:
            continue
        for j in range(i + 1, last + 1):
            n = draw(st.integers(0, 4))
            rows = draw(
                st.lists(
                    st.tuples(st.integers(1, 30), st.integers(0, 9), st.integers(0, 9), st.sampled_from(list(widths))),
                    min_size=n,
                    max_size=n,
                )
            )
            columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
            arrays = [np.array(c, dtype=float if m == 0 else int) for m, c in enumerate(columns)]
            edges.setdefault((i, width), []).append((j, Choices(arrays[0], arrays[1], arrays[2], arrays[3], lambda k: ())))
    return tuple(Cut(f"c{i}", f"v{i}", i) for i in range(last + 1)), edges


@dataclass
class Table:
    cuts: tuple[Cut, ...]
    edges: dict[tuple[int, int], list[tuple[int, Choices]]]


@settings(max_examples=300, deadline=None)
@given(edge_tables(), st.integers(0, 20), st.one_of(st.just(math.inf), st.integers(5, 30)), st.integers(0, 20), st.integers(1, 3))
def test_any_net_of_choices_is_solved_exactly(
    table: tuple[tuple[Cut, ...], dict[tuple[int, int], list[tuple[int, Choices]]]], low: int, high: float, params: int, top: int
) -> None:
    cuts, edges = table
    bounds = Bounds(low, high, params)
    expected = brute_force(Table(cuts, edges), bounds)  # type: ignore[arg-type]
    labels, bound_us, complete = best_labels(cuts, edges, bounds, top)
    assert complete
    if expected == math.inf:
        assert labels == []
    else:
        assert labels[0].latency_us == expected == bound_us
        assert [x.latency_us for x in labels] == sorted(x.latency_us for x in labels)


def test_the_price_that_was_searched_is_the_price_of_the_plan() -> None:
    net = Net(Space(Stretcher(NETWORK), Pricer(chip()), ("cpu", "dsp"), Limits(), 6))
    net.explore(None)
    labels, _, _ = best_labels(net.cuts, net.edges, Bounds(0.0, math.inf, 0.0), 5)
    for label in labels:
        lowered = lower(net.space.stretcher, net.plan(label))
        assert price(lowered, chip()).latency_us == pytest.approx(label.latency_us, rel=1e-9)
        assert lowered.macs == label.macs
        assert lowered.params == label.params


def test_what_search_returns_keeps_every_constraint() -> None:
    limits = Limits()
    result = search(NETWORK, chip(), ("cpu", "dsp"), limits, top=3)
    assert result.optimal
    assert result.lower_bound_us == pytest.approx(result.plans[0].trial.latency_us)
    assert len({found.trial.plan for found in result.plans}) == len(result.plans)
    for found in result.plans:
        for constraint in constraints_of(limits, chip()):
            assert constraint(found.trial) is None
        assert found.trial.latency_us <= min(result.original_us.values()) + 1e-9


def test_bounds_on_macs_are_kept_and_impossible_ones_are_explained() -> None:
    free = search(NETWORK, chip(), ("cpu", "dsp"))
    more = search(NETWORK, chip(), ("cpu", "dsp"), min_macs=1.0 * NETWORK.macs)
    assert more.plans[0].trial.macs >= NETWORK.macs
    assert more.plans[0].trial.latency_us >= free.plans[0].trial.latency_us
    with pytest.raises(NoPlan, match=r"no plan for toy, bounds MACs .* refused by constraint"):
        search(NETWORK, chip(), ("cpu", "dsp"), min_macs=50.0 * NETWORK.macs)


def test_equal_macs_network_has_the_macs_it_is_compared_at() -> None:
    result = search(NETWORK, chip(), ("cpu", "dsp"))
    found = result.plans[0]
    assert found.iso_mac.macs == pytest.approx(found.trial.macs, rel=0.3), "the nearest width that exists"
    assert found.iso_mac.latency_us > 0


def test_a_refusal_carries_demand_limit_and_unit() -> None:
    tight = Limits(alpha=1e-6)
    trial = next(f.trial for f in search(NETWORK, chip(), ("cpu", "dsp")).plans)
    violation = constraints_of(tight, chip())[0](trial)
    assert violation is not None
    assert str(violation).startswith("cost_amortised: segment ")
    assert " us, limit " in str(violation)


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(UnknownName, match="unknown processor 'npu', SoC toy"):
        search(NETWORK, chip(), ("cpu", "npu"))
    with pytest.raises(BadInput, match="beta is -1"):
        Limits(beta=-1)
    with pytest.raises(BadInput, match="name each once"):
        search(NETWORK, chip(), ("cpu", "cpu"))


def test_refusals_are_counted() -> None:
    result = search(NETWORK, chip(), ("cpu", "dsp"), Limits(beta=0.05))
    assert Counter(result.refused)["no_stragglers"] > 0
    assert all(len(s.branches) == 1 for s in result.plans[0].trial.segments)
