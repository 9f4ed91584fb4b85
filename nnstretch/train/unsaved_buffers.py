"""Buffers that weights files leave out: a training that changes them would lose what it changed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nnstretch.errors import BadInput

RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Differences of a buffer that was computed anew, perhaps on another device."""


def unsaved_buffers(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of every buffer that is registered with persistent=False."""
    for prefix, module in network.named_modules():
        for name in sorted(module._non_persistent_buffers_set):
            buffer = module._buffers.get(name)
            if buffer is not None:
                yield f"{prefix}.{name}".removeprefix("."), buffer


class UnsavedBuffers:
    """What unsaved buffers of a network held when they were first seen.

    One that is rebuilt for images of another size has another shape, and is compared with itself.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, torch.Size, torch.dtype], Tensor] = {}

    def refuse_changed(self, network: nn.Module) -> None:
        """Note buffers not seen before, and compare the rest.

        Raises BadInput for one whose values have changed.
        """
        for name, buffer in unsaved_buffers(network):
            now = buffer.detach().cpu()
            key = (name, now.shape, now.dtype)
            if key not in self._first:
                self._first[key] = now.clone()
            elif not is_unchanged(self._first[key], now):
                raise BadInput(
                    f"buffer {name} changes in training, it is registered with persistent=False,"
                    " which weights and saved states leave out, register it with persistent=True"
                )


def is_unchanged(before: Tensor, now: Tensor) -> bool:
    """Return whether two tensors of a kind hold the same values, but for rounding."""
    if torch.equal(before, now):
        return True
    return now.is_floating_point() and torch.allclose(
        before, now, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True
    )
