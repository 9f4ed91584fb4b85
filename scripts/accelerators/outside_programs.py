"""Other programs that model accelerators, each in an environment of its own.

A description of ours is translated into the program's own form and its cycles are read back. All
runs are in a temporary folder, since some programs write where they are started.
"""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnstretch.chip.accelerator import Accelerator
from nnstretch.errors import BadInput

LONGEST_S = 600.0
SCALESIM = """
import sys
from scalesim.scale_sim import scalesim
runner = scalesim(
    save_disk_space=True, verbose=False, config="scale.cfg", topology="gemm.csv",
    layout="layout.csv", input_type_gemm=True,
)
runner.run_scale(top_path=".")
"""
SCALESIM_CONFIGURATION = """[general]
run_name = run
[architecture_presets]
ArrayHeight: {rows}
ArrayWidth: {columns}
IfmapSramSzkB: 4096
FilterSramSzkB: 4096
OfmapSramSzkB: 4096
IfmapOffset: 0
FilterOffset: 10000000
OfmapOffset: 20000000
Dataflow: ws
Bandwidth: 1000
ReadRequestBuffer: 32
WriteRequestBuffer: 32
[layout]
IfmapCustomLayout: False
FilterCustomLayout: False
IfmapSRAMBankBandwidth: 10
IfmapSRAMBankNum: 10
IfmapSRAMBankPort: 2
FilterSRAMBankBandwidth: 10
FilterSRAMBankNum: 10
FilterSRAMBankPort: 2
[sparsity]
SparsitySupport: false
SparseRep: ellpack_block
OptimizedMapping: false
BlockSize: 8
RandomNumberGeneratorSeed: 40
[run_presets]
InterfaceBandwidth: CALC
UseRamulatorTrace: False
"""
ZIGZAG = """
import json, os, sys, zigzag
from zigzag.api import get_hardware_performance_zigzag as price
root = os.path.join(os.path.dirname(zigzag.__file__), "inputs")
workload, (machine, mapping, opt) = os.path.join(root, "workload", "resnet18.onnx"), sys.argv[1:]
energy, cycles, _ = price(
    workload, machine.replace("INPUTS", root), mapping.replace("INPUTS", root), opt=opt,
    dump_folder="out", loma_show_progress_bar=False,
)
print(json.dumps({"cycles": float(cycles)}))
"""
ZIGZAG_OWN = ("INPUTS/hardware/tpu_like.yaml", "INPUTS/mapping/tpu_like.yaml", "latency")
"""Machine, mapping and goal of its own test."""


def run_in(envs: Path, name: str, command: Sequence[str], folder: Path) -> str:
    """Run a program of an environment in a folder. Raises BadInput where it fails."""
    program = envs.resolve() / name / "bin" / command[0]
    if not program.exists():
        raise BadInput(f"no program {program}, --envs, make the environment {name} there")
    ended = subprocess.run(
        [str(program), *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
        raise BadInput(f"{name} failed, {program}, {last}")
    return ended.stdout


def scalesim_cycles(
    envs: Path, rows: int, columns: int, products: Sequence[tuple[int, int, int]]
) -> list[int]:
    """Return weight-stationary cycles of M x N x K products on a systolic array."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configuration = SCALESIM_CONFIGURATION.format(rows=rows, columns=columns)
        (folder / "scale.cfg").write_text(configuration)
        gemm, layout = ["Layer,M,N,K,"], ["Layer," + "order," * 30]
        for place, (m, n, k) in enumerate(products):
            gemm.append(f"p{place},{m},{n},{k},")
            layout.append(f"p{place}," + "1," * 30)
        (folder / "gemm.csv").write_text("\n".join(gemm) + "\n")
        (folder / "layout.csv").write_text("\n".join(layout) + "\n")
        run_in(envs, "scalesim", ["python", "-c", SCALESIM], folder)
        report = next(folder.rglob("COMPUTE_REPORT.csv")).read_text().splitlines()
        table = csv.DictReader(report, skipinitialspace=True)
        return [int(float(row["Total Cycles"])) for row in table]


def zigzag_memory(
    size_bytes: int, operands: Sequence[str], ports: Sequence[dict[str, Any]], served: Sequence[str]
) -> dict[str, Any]:
    """Return a memory as ZigZag describes it; energies are not asked for."""
    return {
        "size": 8 * size_bytes,
        "r_cost": 1,
        "w_cost": 1,
        "area": 0,
        "latency": 1,
        "operands": list(operands),
        "ports": list(ports),
        "served_dimensions": list(served),
    }


def zigzag_port(name: str, kind: str, bits: int, least: int, moves: str) -> dict[str, Any]:
    """Return a port, and what it moves: `I1 fh, O tl`."""
    return {
        "name": name,
        "type": kind,
        "bandwidth_min": least,
        "bandwidth_max": bits,
        "allocation": [move.strip().replace(" ", ", ") for move in moves.split(",")],
    }


def stationary_ports(sum_bits: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return ports of a weight that stays, and of a partial sum of so many bits."""
    weights = [
        zigzag_port("r_port_1", "read", 8, 8, "I2 tl"),
        zigzag_port("w_port_1", "write", 8, 8, "I2 fh"),
    ]
    sums = [
        zigzag_port("r_port_1", "read", sum_bits, sum_bits, "O tl"),
        zigzag_port("r_port_2", "read", sum_bits, sum_bits, "O th"),
        zigzag_port("w_port_1", "write", sum_bits, sum_bits, "O fh"),
        zigzag_port("w_port_2", "write", sum_bits, sum_bits, "O fl"),
    ]
    return weights, sums


def zigzag_machine(machine: Accelerator) -> dict[str, Any]:
    """Return a machine of one core in ZigZag's form: 16 bits of partial sums, int8 otherwise."""
    local_bits = round(8 * machine.local.bytes_per_s / machine.clock_hz)
    ddr_bits = round(8 * machine.ddr.bytes_per_s / machine.clock_hz)
    array = ["D1", "D2"]
    every = "I1 fh, I1 tl, I2 fh, I2 tl, O fh, O tl, O fl, O th"
    weights, sums = stationary_ports(16)
    maps = [
        zigzag_port("r_port_1", "read", local_bits, 64, "I1 tl, O tl, O th"),
        zigzag_port("w_port_1", "write", local_bits, 64, "I1 fh, O fh, O fl"),
    ]
    ddr = [zigzag_port("rw_port_1", "read_write", ddr_bits, ddr_bits, every)]
    return {
        "name": machine.name,
        "memories": {
            "weights": zigzag_memory(128, ["I2"], weights, []),
            "sums": zigzag_memory(2, ["O"], sums, []),
            "maps": zigzag_memory(machine.local.size_bytes, ["I1", "O"], maps, array),
            "ddr": zigzag_memory(1_250_000_000, ["I1", "I2", "O"], ddr, array),
        },
        "operational_array": {
            "unit_energy": 1,
            "unit_area": 1,
            "dimensions": array,
            "sizes": [machine.matrix.columns, machine.matrix.rows],
            "systolic_dimensions": array,
        },
    }


def zigzag_cycles(envs: Path, machine: Accelerator) -> float:
    """Return ZigZag's cycles of its own ResNet-18 on a machine of ours."""
    links = {"O": "O", "W": "I2", "I": "I1"}
    spread = {"D1": [f"K, {machine.matrix.columns}"], "D2": [f"C, {machine.matrix.rows}"]}
    single = {"D1": [f"G, {machine.matrix.columns}"], "D2": ["C, 1"]}
    mapping = [
        {"name": "default", "spatial_mapping": spread, "memory_operand_links": links},
        {"name": "Add", "spatial_mapping": single, "memory_operand_links": links},
        {"name": "Pooling", "spatial_mapping": single, "memory_operand_links": links},
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # JSON is YAML, too.
        (folder / "machine.yaml").write_text(json.dumps(zigzag_machine(machine)))
        (folder / "mapping.yaml").write_text(json.dumps(mapping))
        return run_zigzag(envs, folder, ("machine.yaml", "mapping.yaml", "latency"))


def run_zigzag(
    envs: Path, folder: Path, words: Sequence[str], environment: str = "zigzag"
) -> float:
    """Return ZigZag's cycles of its own ResNet-18 for a machine, a mapping and a goal."""
    text = run_in(envs, environment, ["python", "-c", ZIGZAG, *words], folder)
    return float(json.loads(text.strip().splitlines()[-1])["cycles"])


def zigzag_own_cycles(envs: Path, environment: str) -> float:
    """Return the cycles of ZigZag's own test of ResNet-18 on its own tpu_like."""
    with tempfile.TemporaryDirectory() as name:
        return run_zigzag(envs, Path(name), ZIGZAG_OWN, environment)
