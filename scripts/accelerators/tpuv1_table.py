"""TPU v1 beside its counters: Jouppi et al., ISCA 2017, tables 1 and 3, section 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from judged import JudgedClaim, between
from modelled_cases import external

from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import MATRIX, ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.bench.markdown import markdown_table
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight

UNIT = 256
"""Rows and columns of the unit."""
CLOCK_MHZ = 700
SQUARES = {
    "MLP0": (5, 20e6, 200),
    "MLP1": (4, 5e6, 168),
    "LSTM0": (24, 52e6, 64),
    "LSTM1": (37, 34e6, 96),
}
"""Layers, weights and batch of networks of matrices; each layer as an equal square."""
RATED = ("MLP0", "MLP1", "LSTM0")
"""Whose operations a second are judged: LSTM1's matrices are smaller than its squares."""
CONVOLUTIONS, BOARDS, CHANNELS, SIDE = 16, 8, 256, 19
"""CNN0: 8 million weights, boards of 19 x 19."""
COUNTERS = ("array_active_share", "weight_stall_share", "weight_shift_share")
NEAR_POINTS, SHIFT_POINTS = 6.0, 1.0
MOST_RATE = 1.25
LEAST_WAIT_US = 1e-9
"""Less is a difference of two sums of floats."""
MATRIX_SIDE = 600
MATRIX_US = {256: 18.0, 512: 32.0}
"""For a matrix of 600 x 600, by the unit's side."""


@dataclass(frozen=True)
class CounterRow:
    """What a network's matrix cycles are spent on, in per cent: ours and the machine's."""

    name: str
    ours: tuple[float, float, float]
    """Active, waiting for weights, shifting a tile in."""
    counted: tuple[float, float, float]
    """The same shares of the cycles that are matrix cycles at all."""
    operations_per_s: float
    counted_per_s: float

    @property
    def rate_ratio(self) -> float:
        """Return operations a second over the machine's."""
        return self.operations_per_s / self.counted_per_s


def tpu_rates(*assume: str) -> ChipRates:
    """Return the machine as described, in int8, with fields set."""
    return ChipRates(load_accelerator("tpuv1", assume), "int8")


def linear_chain(sizes: Sequence[int], batch: int) -> ChipGraph:
    """Return linear layers without bias or activation."""
    weights = [
        Weight(f"w{place}.weight", TensorSpec((outputs, inputs)))
        for place, (inputs, outputs) in enumerate(pairwise(sizes))
    ]
    nodes: list[Node] = []
    x = "x"
    for place, weight in enumerate(weights):
        spec = TensorSpec((batch, sizes[place + 1]))
        nodes.append(
            Node(f"linear_{place}", "linear", (ValueRef(x), ValueRef(weight.name)), (spec,))
        )
        x = nodes[-1].name
    inputs = (Value("x", TensorSpec((batch, sizes[0]))),)
    return chip_graph(Graph("chain", inputs, tuple(weights), tuple(nodes), (x,)), "int8")


def convolution_chain() -> ChipGraph:
    """Return CNN0's convolutions of 3 x 3."""
    shape = (BOARDS, CHANNELS, SIDE, SIDE)
    weights = [
        Weight(f"w{place}.weight", TensorSpec((CHANNELS, CHANNELS, 3, 3)))
        for place in range(CONVOLUTIONS)
    ]
    nodes: list[Node] = []
    x = "x"
    for place, weight in enumerate(weights):
        args = (ValueRef(x), ValueRef(weight.name), None, (1, 1), (1, 1), (1, 1), 1)
        nodes.append(Node(f"conv2d_{place}", "conv2d", args, (TensorSpec(shape),)))
        x = nodes[-1].name
    inputs = (Value("x", TensorSpec(shape)),)
    return chip_graph(Graph("cnn0", inputs, tuple(weights), tuple(nodes), (x,)), "int8")


def matrix_spans_us(schedule: ClusterSchedule) -> list[tuple[float, float]]:
    """Return start and end of each instruction of the matrix unit."""
    ends = end_times_us(schedule.instructions, schedule.needs)
    return [
        (end - item.duration_us, end)
        for item, end in zip(schedule.instructions, ends, strict=True)
        if item.engine == MATRIX
    ]


def counted(workload: str, quantity: str) -> float:
    """Return a published counter of a workload."""
    for row in external("tpuv1", quantity):
        if row["workload"] == workload and row["quantity"] == quantity:
            return float(row["value"])
    raise KeyError(f"{workload} {quantity}")


def counter_row(name: str) -> CounterRow:
    """Schedule a network of equal squares and count what the matrix unit does."""
    layers, weights, batch = SQUARES[name]
    side = round((weights / layers) ** 0.5 / UNIT) * UNIT
    chip = linear_chain([side] * (layers + 1), batch)
    schedule = schedule_cluster(chip, tpu_rates(), ScheduleOptions())
    spans = matrix_spans_us(schedule)
    # Before the first and after the last tile the unit waits for maps, which is not counted here.
    cycles = (spans[-1][1] - spans[0][0]) * CLOCK_MHZ
    tiles_run = layers * (side // UNIT) ** 2
    active, shift = 100 * tiles_run * batch / cycles, 100 * tiles_run * UNIT / cycles
    matrix = 1 - counted(name, "non_matrix_share") / 100
    theirs = [counted(name, quantity) / matrix for quantity in COUNTERS]
    operations_per_s = 2 * layers * side**2 * batch / schedule.latency_us * 1e6
    return CounterRow(
        name,
        (active, 100 - active - shift, shift),
        (theirs[0], theirs[1], theirs[2]),
        operations_per_s,
        counted(name, "throughput"),
    )


def longest_wait_us() -> float:
    """Return the longest time that CNN0's unit waits between two tiles."""
    spans = matrix_spans_us(schedule_cluster(convolution_chain(), tpu_rates(), ScheduleOptions()))
    return max(after[0] - before[1] for before, after in pairwise(spans))


def matrix_time_us(unit: int) -> float:
    """Return the time of one vector times a matrix of 600 x 600 in a unit of a size."""
    assume = () if unit == UNIT else (f"matrix.rows={unit}", f"matrix.columns={unit}")
    chip = linear_chain([MATRIX_SIDE, MATRIX_SIDE], 1)
    return schedule_cluster(chip, tpu_rates(*assume), ScheduleOptions()).latency_us


def counter_table(rows: Sequence[CounterRow]) -> list[str]:
    """Return shares of matrix cycles and operations a second beside the counters."""
    lines: list[list[object]] = []
    for row in rows:
        pairs = zip(row.ours, row.counted, strict=True)
        shares = [f"{ours:.1f} ({theirs:.1f})" for ours, theirs in pairs]
        rates = f"{row.operations_per_s / 1e12:.1f} ({row.counted_per_s / 1e12:.1f})"
        lines.append([row.name, *shares, rates, f"{row.rate_ratio:.2f}"])
    heads = (
        "network|active % (counted)|waits for weights % (counted)|shifts a tile in % (counted)"
        "|TOPS (counted)|ratio"
    )
    return markdown_table(heads.split("|"), lines)


def tpu_claims(rows: Sequence[CounterRow]) -> list[JudgedClaim]:
    """Return what is judged of the machine."""
    claims: list[JudgedClaim] = []
    for row in rows:
        apart = [ours - theirs for ours, theirs in zip(row.ours, row.counted, strict=True)]
        for what, points in zip(("active", "weight stall"), apart, strict=False):
            claim = f"TPUv1 {row.name}, {what}, points from the counter"
            claims.append(between(claim, points, -NEAR_POINTS, NEAR_POINTS, 1))
        claim = f"TPUv1 {row.name}, weight shift, points from the counter"
        claims.append(between(claim, apart[2], -SHIFT_POINTS, SHIFT_POINTS, 1))
        if row.name in RATED:
            claim = f"TPUv1 {row.name}, TOPS over the measured"
            claims.append(between(claim, row.rate_ratio, 1.0, MOST_RATE))
    wait_us = longest_wait_us()
    claim = "TPUv1 CNN0, longest wait for weights, us"
    claims.append(JudgedClaim(claim, f"{wait_us:.3f}", "none", wait_us < LEAST_WAIT_US))
    for unit, published_us in MATRIX_US.items():
        claim = f"TPUv1 600 x 600, us with a unit of {unit}"
        times = matrix_time_us(unit), 0.9 * published_us, 1.1 * published_us
        claims.append(between(claim, *times, 1))
    return claims
