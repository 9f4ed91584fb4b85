"""The PyTorch meter: float32 kernels and networks, eager on one thread of the CPU, as CUDA graphs
on a CUDA device, where `run` has them as graphs, too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import nn

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.kernel import ChannelBlockedLayout, FusionRules, Kernel
from nnstretch.profile.interleaved_timing import time_interleaved, wall_us
from nnstretch.profile.kernel_models.torch_chains import (
    EagerCall,
    EagerChain,
    build,
    shapes_of,
    writes,
)
from nnstretch.run.backends.cuda_recording import record

RULES = FusionRules(frozenset())
"""Eager PyTorch fuses nothing, a batch norm not even into a convolution."""
FRAMED = 200
TINY_US = 100.0
"""A chain shorter than this is recorded several times in a row.

Events resolve half a microsecond, and to launch a graph takes some.
"""
MOST_REPEATS = 64


class TorchMeter:
    """Float32. On CUDA a kernel costs what it adds to a CUDA graph."""

    name = "torch"
    dtype = "float32"

    def __init__(self, device: str = "cpu") -> None:
        """Open a device. Raises BadInput for anything but `cpu` and a CUDA device that is there."""
        kind, _, index = device.partition(":")
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device):
            raise BadInput(
                f"no device {device!r}, torch {torch.__version__}, it must be cpu, cuda or"
                " cuda:INDEX"
            )
        if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
            raise BadInput(
                f"no CUDA device, {device!r} asked for, torch {torch.__version__} finds"
                f" {torch.cuda.device_count()}"
            )
        self.device = torch.device(device)
        self.version = f"torch {torch.__version__}" + (
            f", {torch.cuda.get_device_name(self.device)}" if kind == "cuda" else ""
        )

    @property
    def rules(self) -> FusionRules | None:
        """Return the rules of eager PyTorch, which fuses nothing."""
        return RULES

    @cached_property
    def call_us(self) -> float:
        """Return the time of one call of a module that computes nothing (on CUDA, where a graph
        cannot be empty, next to nothing), until the device has finished it, us.
        """
        idle = nn.ReLU() if self.device.type == "cuda" else nn.Identity()
        run = self.network(idle, torch.zeros(1))
        return float(np.median([wall_us(run) for _ in range(FRAMED)]))

    def blocked(self) -> ChannelBlockedLayout | None:
        """Return None: eager PyTorch keeps maps plain."""
        return None

    def launches(self, chain: tuple[Kernel, ...], /) -> int | None:
        """Return one launch for each eager call."""
        try:
            return len(build(chain).calls)
        except UnsupportedOp:
            return None

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        """Time every chain in every round, us; see `Meter`."""
        with one_thread(), torch.inference_mode(), self.here():
            loaded = [self.loaded(chain) for chain in chains]
            runs = [self.repeatable(kernels) for kernels in loaded]
            fresh = [kernels.feed if kernels else nothing for kernels in loaded]
            return time_interleaved(runs, fresh, rounds, self.framing_us, self.clock_us)

    def loaded(self, chain: tuple[Kernel, ...]) -> LoadedTorchKernels | None:
        """Load a chain, None where it has no eager form, or PyTorch refuses it or makes something
        else of it.
        """
        try:
            kernels = LoadedTorchKernels(build(chain), shapes_of(chain), self.device)
            return kernels if writes(chain[-1], kernels.run()) else None
        except (UnsupportedOp, RuntimeError, ValueError, IndexError, TypeError):
            return None

    def repeatable(self, kernels: LoadedTorchKernels | None) -> Callable[[], object] | None:
        """Return a call that runs a chain: on CUDA a replay of so many runs that it can be timed.

        None where CUDA cannot record it, as what waits for the device.
        """
        if kernels is None or self.device.type != "cuda":
            return kernels.run if kernels else None
        try:
            once = Replay(kernels.run, 1, self.device)
            repeats = repeats_of(once.run_us())
            return once if repeats == 1 else Replay(kernels.run, repeats, self.device)
        except RuntimeError:
            return None

    @cached_property
    def framing_us(self) -> float:
        """Measure what the harness adds: a call of a module that does nothing; on CUDA nothing."""
        if self.device.type == "cuda":
            return 0.0
        empty = LoadedTorchKernels(EagerChain([EagerCall(itself)]), [(1,)], self.device)
        return float(np.median([wall_us(empty.run) for _ in range(FRAMED)]))

    def clock_us(self, run: Callable[[], object]) -> float:
        """Return the time of a run: on CUDA by events, else by the wall clock. us."""
        return run.run_us() if isinstance(run, Replay) else wall_us(run)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Make the CUDA device the current one: events and launches belong to it."""
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                yield
        else:
            yield

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """Return one inference of a copy of the module, until the device has finished it."""
        copied, data = copy.deepcopy(module).to(self.device).eval(), example.to(self.device)
        if self.device.type == "cuda":
            with torch.inference_mode(), self.here():
                replay = Replay(lambda: copied(data), 1, self.device)
            return replay.until_done

        def run() -> None:
            with one_thread(), torch.inference_mode():
                copied(data)

        return run


class LoadedTorchKernels:
    """A module on its device, and numbers to feed it."""

    def __init__(
        self, module: nn.Module, shapes: Sequence[tuple[int, ...]], device: torch.device
    ) -> None:
        noise = torch.Generator().manual_seed(0)
        self.module = module.to(device)
        self.data = [torch.randn(shape, generator=noise).to(device) for shape in shapes]
        self.fed = [data.clone() for data in self.data]

    def feed(self) -> None:
        """Write new inputs: in a network, what a kernel reads was just written and is in the near
        caches.
        """
        for fed, data in zip(self.fed, self.data, strict=True):
            fed.copy_(data)

    def run(self) -> torch.Tensor:
        """Run the module once."""
        return self.module(*self.fed)  # type: ignore[no-any-return]


class Replay:
    """A call recorded as a CUDA graph, several times in a row."""

    def __init__(self, call: Callable[[], object], repeats: int, device: torch.device) -> None:
        self.repeats, self._stream = repeats, torch.cuda.Stream(device=device)

        def in_a_row() -> object:
            result = None
            for _ in range(repeats):
                result = call()
            return result

        self._graph, self._result = record(in_a_row, self._stream, torch.cuda)

    def __call__(self) -> None:
        """Launch the graph; returns before the device is done."""
        with torch.cuda.stream(self._stream):
            self._graph.replay()

    def until_done(self) -> None:
        """Launch the graph and wait for its end."""
        self()
        self._stream.synchronize()

    def run_us(self) -> float:
        """Return the time of one run by the device's own clock, us.

        A replay is under way when the first event is queued, so that nothing waits for a launch.
        """
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._stream.wait_stream(torch.cuda.current_stream())
        self()
        start.record(self._stream)
        self()
        end.record(self._stream)
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000 / self.repeats


def repeats_of(once_us: float) -> int:
    """Return how many runs in a row take long enough to be timed, where one takes `once_us`."""
    return min(MOST_REPEATS, ceil(TINY_US / max(once_us, TINY_US / MOST_REPEATS)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread; the setting is the process's, so it is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def itself(value: torch.Tensor) -> torch.Tensor:
    """Return the value unchanged."""
    return value


def nothing() -> None:
    """Return at once."""
    pass
