"""The seam between profiling and backends: who can run kernels here, and how long they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from nnstretch.kernel import ChannelBlockedLayout, FusionRules, Kernel

if TYPE_CHECKING:
    import torch
    from torch import nn


class Meter(Protocol):
    """One backend with one thread, on the core its process is pinned to."""

    @property
    def name(self) -> str:
        """Return the name for `--backend`: onnxruntime, litert, openvino, torch."""
        ...

    @property
    def dtype(self) -> str:
        """Return element type of the kernels it runs: float32 or int8."""
        ...

    @property
    def version(self) -> str:
        """Return name and version of the library that measures."""

    @property
    def rules(self) -> FusionRules | None:
        """Return the fusion rules where the converter that writes the files decides them, None
        where the runtime decides, so that they are probed.
        """
        ...

    @property
    def call_us(self) -> float:
        """Return what one call of a deployed sub-graph costs beside its kernels."""
        ...

    def blocked(self) -> ChannelBlockedLayout | None:
        """Return the blocked layout of feature maps, as seen in what the backend runs, or None.

        None where it does not.
        """
        ...

    def launches(self, chain: tuple[Kernel, ...], /) -> int | None:
        """Return kernels it really launches for a chain, copies between layouts apart.

        None where it does not say.
        """
        ...

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        """Time every chain in every round, without what the harness adds; us.

        () where the backend refuses one.

        A chain is one kernel, or several where each reads what the one before wrote. All chains of
        a call take turns, so that between two runs of one its weights leave the near caches as they
        do in a network; what it reads was just written, as in a network.
        """
        ...

    def network(self, module: nn.Module, example: torch.Tensor, /) -> Callable[[], None]:
        """Return one inference of a whole network, deployed as `nnstretch export` deploys it.

        Calls to it are timed.
        """
        ...
