"""Stream's cycles of two convolutions on a machine of ours, translated into Stream's form."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outside_programs import run_in, stationary_ports, zigzag_memory, zigzag_port

from nnstretch.chip.accelerator import Accelerator

LONGEST_SOLVE_S = 60
STREAM = """
import json, logging, sys
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference
from stream.api import SolveOptions, evaluate_mapping

logging.disable(logging.WARNING)
pairs, longest_s = json.loads(sys.argv[1]), int(sys.argv[2])
cycles = []
for side, channels, middle, last in pairs:
    weights = [
        numpy_helper.from_array(np.zeros((n, c, 3, 3), np.int8), name)
        for name, n, c in (("first", middle, channels), ("second", last, middle))
    ]
    edge = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["between"], name="conv_first", **edge),
        helper.make_node("Conv", ["between", "second"], ["y"], name="conv_second", **edge),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT8, [1, count, side, side])
        for name, count in (("x", channels), ("y", last))
    ]
    graph = helper.make_graph(nodes, "pair", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(shape_inference.infer_shapes(model), "pair.onnx")
    options = SolveOptions(artifacts=False, time_limit_s=longest_s)
    estimate = evaluate_mapping("machine.yaml", "pair.onnx", "out", None, options)
    solved = estimate.context.get("allocation").solution.latency
    cycles.append([float(estimate.cycles), solved.per_iteration, solved.overlap, solved.fill])
print(json.dumps(cycles))
"""


@dataclass(frozen=True)
class ConvolutionPair:
    """Two 3 x 3 convolutions of a square map, one image."""

    side: int
    channels: int
    middle: int
    last: int

    def __str__(self) -> str:
        return f"{self.side} x {self.side}, {self.channels} -> {self.middle} -> {self.last}"


def stream_core(machine: Accelerator) -> dict[str, Any]:
    """Return a core: weights stationary, 32 bits of a partial sum in each column."""
    bits = round(8 * machine.local.bytes_per_s / machine.clock_hz)
    array = ["D1", "D2"]
    weights, sums = stationary_ports(32)
    local = [
        zigzag_port("r_port_1", "read", bits, 64, "I1 tl, I2 tl, O tl, O th"),
        zigzag_port("w_port_1", "write", bits, 64, "I1 fh, I2 fh, O fh, O fl"),
    ]
    return {
        "name": "core",
        "type": "zigzag.compute",
        "memories": {
            "weights": zigzag_memory(128, ["I2"], weights, []),
            "sums": zigzag_memory(4, ["O"], sums, ["D2"]),
            "local": zigzag_memory(machine.local.size_bytes, ["I1", "I2", "O"], local, array),
        },
        "operational_array": {
            "unit_energy": 1,
            "unit_area": 1,
            "dimensions": array,
            "sizes": [machine.matrix.columns, machine.matrix.rows],
            "systolic_dimensions": array,
        },
        "operand_precision": {"input": "int8", "accumulator": "int32"},
    }


def stream_memory(machine: Accelerator) -> dict[str, Any]:
    """Return the core that stands for the memory outside."""
    bits = round(8 * machine.ddr.bytes_per_s / machine.clock_hz)
    every = "I1 fh, I1 tl, I2 fh, I2 tl, O fh, O tl, O fl, O th"
    ports = [zigzag_port("rw_port_1", "read_write", bits, bits, every)]
    array = ["D1", "D2"]
    return {
        "name": "offchip",
        "type": "zigzag.offchip",
        "memories": {"dram": zigzag_memory(1_250_000_000, ["I1", "I2", "O"], ports, array)},
        "operational_array": {
            "unit_energy": 0,
            "unit_area": 0,
            "dimensions": array,
            "sizes": [0, 0],
        },
    }


def stream_machine(machine: Accelerator) -> dict[str, Any]:
    """Return a cluster: equal cores that are joined each to each, and one bus to the memory."""
    assert machine.mesh_bytes_per_s is not None
    cores = list(range(machine.cores))
    link_bits = round(8 * machine.mesh_bytes_per_s / machine.clock_hz)
    bus_bits = round(8 * machine.ddr.bytes_per_s / machine.clock_hz)
    links = [
        {"type": "link", "cores": [a, b], "bandwidth": link_bits}
        for a, b in zip(cores, [*cores[1:], cores[0]], strict=True)
    ]
    return {
        "name": machine.name,
        "cores": {**dict.fromkeys(cores, "./core.yaml"), machine.cores: "./offchip.yaml"},
        "core_coordinates": {core: [core, 0] for core in [*cores, machine.cores]},
        "offchip_core_id": machine.cores,
        "unit_energy_cost": 0,
        "core_connectivity": [
            *links,
            {"type": "bus", "cores": [*cores, machine.cores], "bandwidth": bus_bits},
        ],
    }


@dataclass(frozen=True)
class StreamCycles:
    """Cycles of a mapping, and what they are the sum of."""

    total: int
    per_iteration: int
    overlap: int
    """Cycles of an iteration that the next one overlaps."""
    fill: int
    """Before the first iteration, and after the last."""

    @property
    def bus(self) -> int:
        """Return the cycles of all iterations one behind the other, in each of which the bus works."""
        return self.total - self.overlap - self.fill


def stream_cycles(
    envs: Path, machine: Accelerator, pairs: Sequence[ConvolutionPair]
) -> list[StreamCycles]:
    """Return the cycles of the mapping that Stream proposes for each pair of convolutions."""
    import yaml

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "machine.yaml").write_text(yaml.safe_dump(stream_machine(machine)))
        (folder / "core.yaml").write_text(json.dumps(stream_core(machine)))
        (folder / "offchip.yaml").write_text(json.dumps(stream_memory(machine)))
        sizes = json.dumps([[p.side, p.channels, p.middle, p.last] for p in pairs])
        command = ["python", "-c", STREAM, sizes, str(LONGEST_SOLVE_S)]
        text = run_in(envs, "stream", command, folder)
    rows = json.loads(text.strip().splitlines()[-1])
    return [StreamCycles(*map(round, row)) for row in rows]
