"""CUDA graphs on the CPU, for tests where no card is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Tape(TorchDispatchMode):  # type: ignore[misc]
    """What a CUDA graph does, on the CPU: the operators of a recording again, on the same
    memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and out.data_ptr() != again.data_ptr():
                out.copy_(again)


def stand_in() -> SimpleNamespace:
    """`torch.cuda` as far as a recording uses it.

    `said` is what was asked of it while recording.
    """
    said: list[str] = []

    class Event:
        def record(self, stream: Any) -> None:
            said.append(f"{stream.name} records")

    class Stream:
        made = 0

        def __init__(self, device: str) -> None:
            self.name = "abcdef"[Stream.made]
            Stream.made += 1

        def synchronize(self) -> None:
            said.append(f"{self.name} is waited for")

        def wait_stream(self, other: Any) -> None:
            said.append(f"{self.name} waits for all")

        def wait_event(self, event: Event) -> None:
            said.append(f"{self.name} waits")

    @contextmanager
    def graph(tape: Tape, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        said.clear()
        with tape:
            yield

    nothing = nullcontext()
    return SimpleNamespace(
        said=said,
        Event=Event,
        Stream=Stream,
        CUDAGraph=Tape,
        graph=graph,
        device=lambda device: nothing,
        stream=lambda stream: nothing,
        current_stream=lambda: None,
        synchronize=lambda: None,
    )
