"""What the authors of NN-Stretch published about their phone, as arrays that a fit can price.

Whole networks (`latency_mi9.csv`, `ops_mi9.csv`), and of R-34-DG single GPU kernels and the waits
around its meeting points (`kernels_r34dg.csv`), whose DSP branches are rebuilt from `configs.csv`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnstretch.kernel import Kernel
from nnstretch.predict.op_list import OpListSegment, read_ops
from nnstretch.predict.roofline import Rates, RooflineFeatures, roofline_features
from nnstretch.predict.sampled_range import Ranges, sampled_ranges
from nnstretch.soc import Link, Processor, Soc

ELEMENT_BYTES = 1
PROCESSORS = ("cpu", "gpu", "dsp")
RATES = tuple(Rates.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Stage:
    """One meeting point of R-34-DG, mean of two timed runs, microseconds."""

    kib_in: float
    gpu_kib_out: float
    dsp_kib_out: float
    dsp_kernels: RooflineFeatures
    kernels_us: float
    """GPU kernels, summed."""
    launch_us: float
    """Input unmap queued until the first kernel."""
    output_us: float
    """Last kernel until the output is mapped."""
    enqueue_us: float
    """The main thread hands the branch over to OpenCL."""
    wait_us: float
    """The main thread waits for the GPU after that."""
    rest_us: float
    """What enqueueing and waiting take beyond launch, kernels and output: the host's own share."""
    merge_us: float
    """Concatenation without the waits inside it."""
    dsp_us: float
    """Handing over until the DSP branch is back; an estimate of the data's authors."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Read off the waits of R-34-DG, not fitted."""

    gpu_in: Link
    gpu_out: Link
    merge: Link
    enqueue: Link
    """The main thread brings what the GPU reads to floats and enqueues its branch."""

    @property
    def convert(self) -> Link:
        """Return the part that depends on size: no other branch of the host starts before."""
        return Link(0.0, self.enqueue.us_per_kib)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything measured, and the kernels behind it as arrays."""

    networks: Mapping[str, tuple[OpListSegment, ...]]
    measured_us: Mapping[str, float]
    model: Mapping[str, str]
    kernel_us: np.ndarray
    stage: np.ndarray
    """Stage of each GPU kernel, from 0."""
    stages: tuple[Stage, ...]
    crossing: Crossing
    features: Mapping[str, RooflineFeatures]
    spans: Mapping[int, tuple[str, int, int]]
    """Where the kernels of a branch lie in the arrays of its processor."""
    gpu_kernels: RooflineFeatures
    sampled: Mapping[str, Mapping[str, Ranges]]
    """Range of each feature over what was measured, by processor and kind."""


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def rounded(value: float) -> float:
    """Four digits: more than the data knows, few enough to be the same on every machine."""
    return float(f"{value:.4g}")


def line(x: Sequence[float], y: Sequence[float]) -> Link:
    """Straight line through waits over KiB, least in squared relative error, both ends at least
    zero.
    """
    slope, fixed = np.polyfit(x, y, 1, w=1 / np.array(y))
    return Link(rounded(max(0.0, float(fixed))), rounded(max(0.0, float(slope))))


def crossing(stages: Sequence[Stage]) -> Crossing:
    """Launch gap and enqueueing over KiB in, output gap over KiB out, merge over KiB merged."""
    return Crossing(
        line([s.kib_in for s in stages], [s.launch_us for s in stages]),
        line([s.gpu_kib_out for s in stages], [s.output_us for s in stages]),
        line([s.gpu_kib_out + s.dsp_kib_out for s in stages], [s.merge_us for s in stages]),
        line([s.kib_in for s in stages], [s.enqueue_us for s in stages]),
    )


def kernel_of(row: Mapping[str, str]) -> Kernel:
    """The second convolution of a block carries the residual sum along."""
    cin, cout, hw_in, hw_out, k = (int(row[key]) for key in ("cin", "cout", "hw_in", "hw_out", "k"))
    return convolution(cin, cout, hw_in, hw_out, k, row["role"])


def convolution(cin: int, cout: int, side_in: int, side_out: int, k: int, role: str) -> Kernel:
    read, write = cin * side_in**2, cout * side_out**2
    residual = write if role == "conv2" else 0
    return Kernel(
        name=role,
        kind="conv",
        cin=cin,
        cout=cout,
        hw_in=side_in**2,
        hw_out=side_out**2,
        kernel=k,
        stride=side_in // side_out,
        groups=1,
        batch=1,
        macs=k * k * cin * cout * side_out**2,
        read_elements=read + residual,
        write_elements=write,
        weight_elements=k * k * cin * cout + cout,
    )


def basic_blocks(config: Mapping[str, str]) -> tuple[Kernel, ...]:
    """A branch of basic residual blocks.

    Projection where shapes change, then two 3x3 convolutions a block.
    """
    width, came = int(config["width"]), int(config["stage_in_w"])
    side_in, side_out = int(config["hw_in_224"]), int(config["hw_out_224"])
    kernels = (
        [convolution(came, width, side_in, side_out, 1, "projection")]
        if (came, side_in) != (width, side_out)
        else []
    )
    for _ in range(int(config["depth"])):
        kernels.append(convolution(came, width, side_in, side_out, 3, "conv1"))
        kernels.append(convolution(width, width, side_out, side_out, 3, "conv2"))
        came, side_in = width, side_out
    return tuple(kernels)


def stage(configs: Mapping[str, Mapping[str, str]], timed: Sequence[Mapping[str, str]]) -> Stage:
    """From the two branches of a stage and one row of each timed run."""

    def mean(key: str) -> float:
        return float(np.mean([float(row[key]) for row in timed]))

    gpu, dsp = configs["gpu"], configs["dsp"]
    enqueue_us, wait_us = mean("gpu_push_us"), mean("gpu_wait_us")
    return Stage(
        kib_in=int(gpu["stage_in_w"]) * int(gpu["hw_in_224"]) ** 2 / 1024,
        gpu_kib_out=int(gpu["width"]) * int(gpu["hw_out_224"]) ** 2 / 1024,
        dsp_kib_out=int(dsp["width"]) * int(dsp["hw_out_224"]) ** 2 / 1024,
        dsp_kernels=stacked(basic_blocks(dsp)),
        kernels_us=mean("kernel_span_us"),
        launch_us=mean("launch_gap_us"),
        output_us=mean("out_gap_us"),
        enqueue_us=enqueue_us,
        wait_us=wait_us,
        rest_us=enqueue_us + wait_us - mean("unmapQ_to_outMap_us"),
        merge_us=mean("concat_minus_wait_us"),
        dsp_us=mean("dsp_branch_est_us"),
    )


def stages_of(data: Path, timed: Sequence[Mapping[str, str]]) -> tuple[Stage, ...]:
    configs = [
        row
        for row in rows(data / "configs.csv")
        if row["config"] == "R-34-DG" and row["branch"] != "-1"
    ]
    first = [row for row in timed if row["kernel_index"] == "1"]
    numbers = sorted({row["stage"] for row in first})
    return tuple(
        stage(
            {c["device"]: c for c in configs if c["part"] == f"s{n}"},
            [row for row in first if row["stage"] == n],
        )
        for n in numbers
    )


def stacked(kernels: Sequence[Kernel]) -> RooflineFeatures:
    columns = zip(*(roofline_features(kernel, ELEMENT_BYTES) for kernel in kernels), strict=True)
    return RooflineFeatures(*(np.array(column, float) for column in columns))  # type: ignore[arg-type]


def gather(data: Path) -> Evidence:
    """Read the folder; see its README for the columns."""
    latencies = rows(data / "latency_mi9.csv")
    bare = Soc("mi9", tuple(Processor(name, name, 1) for name in PROCESSORS), "int8", {})
    networks = read_ops(data / "ops_mi9.csv", bare)
    kernels: dict[str, list[Kernel]] = {name: [] for name in PROCESSORS}
    spans: dict[int, tuple[str, int, int]] = {}
    for branch in (b for parts in networks.values() for part in parts for b in part.branches):
        first = len(kernels[branch.processor])
        kernels[branch.processor] += branch.kernels
        spans[id(branch)] = (branch.processor, first, first + len(branch.kernels))
    timed = [row for row in rows(data / "kernels_r34dg.csv") if row["run"] != "warmup"]
    single: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in timed:
        single.setdefault((row["stage"], row["kernel_index"]), []).append(row)
    stages = stages_of(data, timed)
    return Evidence(
        networks=networks,
        measured_us={row["config"]: float(row["latency_us"]) for row in latencies},
        model={row["config"]: row["model"] for row in latencies},
        kernel_us=np.array(
            [np.mean([float(run["kernel_us"]) for run in runs]) for runs in single.values()]
        ),
        stage=np.array([int(number) - 1 for number, _ in single]),
        stages=stages,
        crossing=crossing(stages),
        features={name: stacked(many) for name, many in kernels.items()},
        spans=spans,
        gpu_kernels=stacked([kernel_of(runs[0]) for runs in single.values()]),
        sampled={name: sampled_ranges(many, ELEMENT_BYTES) for name, many in kernels.items()},
    )
