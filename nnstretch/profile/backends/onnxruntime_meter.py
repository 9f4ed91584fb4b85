"""The ONNX Runtime meter.

Kernel times from the runtime's own records, copies between layouts told apart.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime  # type: ignore[import-untyped]

from nnstretch.errors import UnsupportedOp
from nnstretch.kernel import ChannelBlockedLayout, Kernel
from nnstretch.profile.backends.onnxruntime_layout import blocked_of
from nnstretch.profile.backends.onnxruntime_records import (
    inputs_for,
    is_launch,
    mean_launch_us,
    quartile,
    records_by_round,
    session_options,
)
from nnstretch.profile.interleaved_timing import wall_us
from nnstretch.profile.kernel_models.onnx_builder import OnnxModelBuilder
from nnstretch.profile.kernel_models.onnx_chains import CARRIER, SWEEP, TAIL, build
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec

if TYPE_CHECKING:
    import torch
    from torch import nn

WARM_UP = 2
LEAST_US = 0.2
"""A launch that costs less than the records can tell."""
REORDERS = {"ReorderInput": "to_blocked", "ReorderOutput": "to_plain"}


class OnnxRuntimeMeter:
    """Float32 kernels on one thread, CPU execution provider."""

    name = "onnxruntime"
    dtype = "float32"
    version = f"onnxruntime {onnxruntime.__version__}"
    rules = None

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        """Time every chain in every round, us; reorders that the runtime wraps around a lone chain
        are not counted.

        A chain of one reorder is nothing else.
        """
        carried: dict[int, tuple[Kernel, ...]] = {}
        for number, chain in enumerate(chains):
            if (model := self.with_carriers(chain)) is not None:
                carried[number] = model
        firsts = [chains[number][0] for number in carried]
        times = self.time_with_halving(list(carried.values()), firsts, rounds)
        times_us: list[tuple[float, ...]] = [()] * len(chains)
        for number, of_chain in zip(carried, times, strict=True):
            times_us[number] = of_chain
        return times_us

    def time_with_halving(
        self, models: list[tuple[Kernel, ...]], firsts: list[Kernel], rounds: int
    ) -> list[tuple[float, ...]]:
        """Time chains; what the runtime refuses is looked for by halves, so that it does not cost
        the others.
        """
        if not models:
            return []
        try:
            runs = self.records_per_round(build(models), rounds)
        except Exception:
            if len(models) == 1:
                return [()]
            half = len(models) // 2
            return self.time_with_halving(
                models[:half], firsts[:half], rounds
            ) + self.time_with_halving(models[half:], firsts[half:], rounds)
        return [
            self.times([run.get(i, []) for run in runs], first) for i, first in enumerate(firsts)
        ]

    def times(self, runs: list[list[dict[str, Any]]], first: Kernel) -> tuple[float, ...]:
        """Return the times of the chain, empty when a run failed, us."""
        round_times = [
            self.chain_total_us(events, first.op if first.kind == "reorder" else "")
            for events in runs
        ]
        return (
            tuple(max(LEAST_US, us) for us in round_times if us is not None)
            if None not in round_times
            else ()
        )

    def blocked(self) -> ChannelBlockedLayout | None:
        """Return block and alignment as this build of the runtime uses them.

        They differ between AVX2, AVX-512 and Arm.
        """
        return blocked_of(self.copies)

    def copies(self, chain: tuple[Kernel, ...]) -> int | None:
        """Return copies between layouts around a chain."""
        operators = self.operators(chain)
        return None if operators is None else sum(op in REORDERS for op in operators)

    def launches(self, chain: tuple[Kernel, ...], /) -> int | None:
        """Return how many kernels were launched, None when the profile does not tell."""
        operators = self.operators(chain)
        return None if operators is None else sum(op not in REORDERS for op in operators)

    def operators(self, chain: tuple[Kernel, ...]) -> list[str] | None:
        """Return the operators that ran for a chain, without head, tail and carriers.

        None where the runtime refuses it.
        """
        try:
            events = self.records_per_round(build([chain]), 1)[0].get(0, [])
        except Exception:
            return None
        return [
            e["args"]["op_name"] for e in events if not e["name"].startswith((CARRIER, TAIL, SWEEP))
        ]

    def with_carriers(self, chain: tuple[Kernel, ...]) -> tuple[Kernel, ...] | None:
        """Return the chain as it is built: a reorder shows itself around a convolution.

        None where a kernel has no ONNX form.
        """
        if chain[0].kind == "reorder":
            chain = (carrier(chain[0]),)
        try:
            build([chain])
        except UnsupportedOp:
            return None
        return chain

    def chain_total_us(self, events: list[dict[str, Any]], reorder: str) -> float | None:
        """Return the time of a chain in one round, us; None where what was asked for did not
        run.
        """
        picked: list[float] = []
        for event in events:
            is_part = not event["name"].startswith((CARRIER, TAIL, SWEEP))
            if is_part and REORDERS.get(event["args"]["op_name"], "") == reorder:
                picked.append(event["dur"] - self.recording_us)
        return sum(picked) if picked else None

    def records_per_round(self, model: bytes, rounds: int) -> list[dict[int, list[dict[str, Any]]]]:
        """Return per round, the runtime's records of every chain."""
        with tempfile.TemporaryDirectory() as folder:
            options = session_options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "records")
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
            feeds = inputs_for(session)
            for _ in range(WARM_UP + rounds):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return records_by_round(events)[WARM_UP:]

    @cached_property
    def call_us(self) -> float:
        """Return the time of one session run of one tiny launch, us."""
        model = OnnxModelBuilder()
        model.write(model.add("Elu", model.read((1, 16))))
        session = onnxruntime.InferenceSession(
            model.bytes(), session_options(), providers=["CPUExecutionProvider"]
        )
        feeds = inputs_for(session)
        return quartile([wall_us(lambda: session.run(None, feeds)) for _ in range(200)])

    @cached_property
    def recording_us(self) -> float:
        """Return what a record adds to a launch.

        Tiny launches with records against the same without.
        """
        model = OnnxModelBuilder()
        value, count = model.read((1, 16)), 60
        for _ in range(count // 2):
            value = model.add("Softplus", model.add("Elu", value))
        model.write(value)
        data = model.bytes()
        session = onnxruntime.InferenceSession(
            data, session_options(), providers=["CPUExecutionProvider"]
        )
        feeds = inputs_for(session)
        plain = quartile([wall_us(lambda: session.run(None, feeds)) for _ in range(60)]) / count
        with tempfile.TemporaryDirectory() as folder:
            options = session_options()
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "records")
            session = onnxruntime.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
            for _ in range(60):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        recorded = [event["dur"] for event in events if is_launch(event)]
        return max(0.0, mean_launch_us(recorded[count * 5 :], count) - plain)

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """Return a call that runs the loaded network once."""
        from nnstretch.profile.backends.onnx_network import to_onnx

        session = onnxruntime.InferenceSession(
            to_onnx(module, example), session_options(), providers=["CPUExecutionProvider"]
        )
        feeds = {session.get_inputs()[0].name: example.numpy()}
        return lambda: session.run(None, feeds)


def carrier(kernel: Kernel) -> Kernel:
    """Return a narrow 1x1 convolution that writes the map, or a depthwise one that reads it.

    The runtime adds the copy.
    """
    shape, pixels = kernel.shape_out, kernel.shape_out[2:]
    if kernel.op == "to_plain":
        return kernel_of_spec(
            KernelSpec("conv", "conv2d", ((shape[0], 16, *pixels),), shape), kernel.name
        )
    return kernel_of_spec(
        KernelSpec("dwconv", "conv2d", (shape,), shape, groups=shape[1]), kernel.name
    )
