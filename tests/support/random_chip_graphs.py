"""Random graphs and random machines for accelerators."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ClusterSchedule, ScheduleOptions, schedule_cluster
from nnstretch.capture.rebuild_module import build
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.errors import BadPlan
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight

LARGEST_BYTES = 1 << 20
"""Local buffer of a random machine in which all layers of its graph fit."""


@dataclass
class GraphMaker:
    """Graph that grows node by node."""

    nodes: list[Node] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, op: str, shape: tuple[int, ...], *args: object) -> str:
        name = f"{op.split('.')[0]}_{len(self.nodes)}"
        self.nodes.append(Node(name, op, args, (TensorSpec(shape),)))  # type: ignore[arg-type]
        self.shapes[name] = shape
        return name

    def weight(self, *shape: int) -> ValueRef:
        name = f"w{len(self.weights)}.weight"
        self.weights.append(Weight(name, TensorSpec(shape)))
        return ValueRef(name)

    def conv(self, x: str, channels: int, k: int, stride: int, groups: int = 1) -> str:
        n, c, h, w = self.shapes[x]
        pad = k // 2
        size = tuple((s + 2 * pad - k) // stride + 1 for s in (h, w))
        weight = self.weight(channels, c // groups, k, k)
        args = (ValueRef(x), weight, None, (stride,) * 2, (pad,) * 2, (1, 1), groups)
        return self.add("conv2d", (n, channels, *size), *args)

    def pool(self, x: str) -> str:
        n, c, h, w = self.shapes[x]
        return self.add(
            "max_pool2d", (n, c, (h + 1) // 2, (w + 1) // 2), ValueRef(x), (3, 3), (2, 2), (1, 1)
        )

    def relu(self, x: str) -> str:
        return self.add("relu", self.shapes[x], ValueRef(x))

    def sum(self, x: str, y: str) -> str:
        return self.add("add.Tensor", self.shapes[x], ValueRef(x), ValueRef(y))

    def cat(self, x: str, y: str) -> str:
        n, c, h, w = self.shapes[x]
        return self.add("cat", (n, c + self.shapes[y][1], h, w), (ValueRef(x), ValueRef(y)), 1)

    def linear(self, x: str, width: int) -> str:
        *outer, last = self.shapes[x]
        return self.add("linear", (*outer, width), ValueRef(x), self.weight(width, last))

    def attention(self, x: str, heads: int) -> str:
        n, t, c = self.shapes[x]
        parts = []
        for _ in range(3):
            wide = self.linear(x, c)
            view = self.add(
                "view", (n, t, heads, c // heads), ValueRef(wide), (n, t, heads, c // heads)
            )
            parts.append(self.add("transpose.int", (n, heads, t, c // heads), ValueRef(view), 1, 2))
        mixed = self.add(
            "scaled_dot_product_attention", self.shapes[parts[0]], *map(ValueRef, parts)
        )
        back = self.add("transpose.int", (n, t, heads, c // heads), ValueRef(mixed), 1, 2)
        return self.add("reshape", (n, t, c), ValueRef(back), (n, t, c))

    def finish(self, inputs: tuple[Value, ...], outputs: tuple[str, ...]) -> Graph:
        return Graph("random", inputs, tuple(self.weights), tuple(self.nodes), outputs)


def random_map_graph(draw: random.Random) -> Graph:
    """Convolutions, pools, sums and concatenations with skips, perhaps a head."""
    maker = GraphMaker()
    batch, side = draw.choice([1, 2, 3, 4]), draw.choice([8, 12, 16, 24])
    value = Value("x", TensorSpec((batch, draw.choice([3, 8]), side, side)))
    maker.shapes["x"] = value.spec.shape
    live, x = ["x"], "x"
    for _ in range(draw.randint(2, 9)):
        x = draw.choice(live[-2:])
        step = draw.random()
        if step < 0.45:
            y = maker.conv(
                x, draw.choice([4, 8, 16]), draw.choice([1, 3, 5]), draw.choice([1, 1, 2])
            )
        elif step < 0.6:
            y = maker.conv(x, maker.shapes[x][1], 3, 1, maker.shapes[x][1])
        elif step < 0.75:
            y = maker.relu(x)
        elif step < 0.85 and maker.shapes[x][2] > 3:
            y = maker.pool(x)
        else:
            same = [z for z in live if maker.shapes[z] == maker.shapes[x] and z != x]
            flat = [z for z in live if maker.shapes[z][2:] == maker.shapes[x][2:]]
            y = maker.sum(x, draw.choice(same)) if same else maker.cat(x, draw.choice(flat))
        live.append(y)
    used = {name for node in maker.nodes for name in node.inputs}
    ends = tuple(node.name for node in maker.nodes if node.name not in used)
    if draw.random() < 0.4:
        n, c = maker.shapes[ends[-1]][:2]
        mean = maker.add("mean.dim", (n, c), ValueRef(ends[-1]), (2, 3))
        ends = (*ends[:-1], maker.linear(mean, 5))
    return maker.finish((value,), ends)


def random_token_graph(draw: random.Random) -> Graph:
    """Linear layers, attention, norms and sums over tokens."""
    maker = GraphMaker()
    width = draw.choice([8, 16, 32])
    shape = (draw.choice([1, 2, 4]), draw.choice([6, 8, 16]), width)
    maker.shapes["x"] = shape
    x = "x"
    for _ in range(draw.randint(1, 4)):
        step = draw.random()
        if step < 0.35:
            x = maker.sum(maker.attention(x, draw.choice([1, 2, 4])), x)
        elif step < 0.7:
            wide = maker.add("gelu", (*shape[:-1], 2 * width), ValueRef(maker.linear(x, 2 * width)))
            x = maker.sum(maker.linear(wide, width), x)
        else:
            x = maker.add("layer_norm", shape, ValueRef(x), (width,))
    if x == "x":
        x = maker.relu(x)
    return maker.finish((Value("x", TensorSpec(shape)),), (x,))


def random_graph(seed: int) -> Graph:
    draw = random.Random(seed)
    return random_token_graph(draw) if draw.random() < 0.3 else random_map_graph(draw)


def random_machine(seed: int) -> Accelerator:
    """Small buffers, so that little fits."""
    draw = random.Random(seed + 10**6)
    shared = None
    if draw.random() < 0.7:
        shared = OnChipBuffer(draw.choice([4, 16, 64]) * 1024, draw.choice([4e9, 64e9]))
    return Accelerator(
        "random",
        clusters=draw.choice([1, 2]),
        cores=draw.choice([1, 2, 4, 8, 3]),
        clock_hz=1e9,
        element_types=("fp16",),
        matrix=MatrixUnit(draw.choice([4, 16]), draw.choice([4, 8]), draw.choice([0, 8])),
        vector=VectorUnit(draw.choice([4, 16]), 1, 4),
        local=OnChipBuffer(draw.choice([2, 4, 8, 32]) * 1024, draw.choice([16e9, 128e9])),
        ddr=Dram(draw.choice([1e9, 8e9]), draw.random() < 0.7),
        shared=shared,
        mesh_bytes_per_s=draw.choice([None, 8e9]),
        launch_us=draw.choice([0.0, 2.0]),
    )


def schedule_that_fits(
    seed: int, options: ScheduleOptions, machine: Accelerator | None = None
) -> ClusterSchedule:
    """Schedule a random pair, its local buffers doubled until every layer fits them."""
    chip, machine = chip_graph(random_graph(seed), "fp16"), machine or random_machine(seed)
    while True:
        try:
            return schedule_cluster(chip, ChipRates(machine, "fp16"), options)
        except BadPlan:
            machine = machine.with_buffers(2 * machine.local.size_bytes, machine.shared_bytes)
            assert machine.local.size_bytes <= LARGEST_BYTES, seed


def random_tensors(
    graph: Graph, seed: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights and inputs by name."""
    generator = torch.Generator().manual_seed(seed)
    weights = {w.name: torch.randn(w.spec.shape, generator=generator) * 0.3 for w in graph.weights}
    inputs = {v.name: torch.randn(v.spec.shape, generator=generator) for v in graph.inputs}
    return weights, inputs


def true_outputs(
    graph: Graph, weights: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """What the network computes, by torch and without any schedule."""
    module = build(graph, weights).eval()
    with torch.no_grad():
        result = module(*inputs.values())
    return result if isinstance(result, tuple) else (result,)
