"""The order of training images, a function of (seed, epoch) alone.

It depends neither on the number of processes nor on interruptions: every process takes its part of
the same batches, and a resumed run goes on with the next batch of the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Sampler

from nnstretch.errors import BadInput

CHUNKS_PER_WINDOW = 8
"""Chunks shuffled into one another: more mix better, fewer are open at the same time."""


@dataclass(frozen=True, slots=True)
class BatchSelection:
    """Images of one micro-batch, and their place in the batch of all processes."""

    epoch: int
    step: int
    """Batch within the epoch."""
    first_position: int
    """Position of its first image within the batch."""
    batch_images: int
    """Images of the whole batch."""
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """The part of every batch that one process takes."""

    rank: int = 0
    processes: int = 1
    micro_batches: int = 1

    def images_per_micro_batch(self, batch_images: int) -> int:
        """Return the images of a micro-batch. Raises BadInput where shares would be uneven."""
        parts = self.processes * self.micro_batches
        if batch_images % parts or batch_images < parts:
            raise BadInput(
                f"data.batch_images is {batch_images}, {self.processes} processes of"
                f" {self.micro_batches} micro-batches, it must be a multiple of {parts}"
            )
        return batch_images // parts


def seeded_generator(*numbers: int) -> torch.Generator:
    """Return a generator whose stream is determined by a tuple of numbers."""
    return torch.Generator().manual_seed(mix_seeds(*numbers))


def seed_global_generators(device: torch.device, *numbers: int) -> None:
    """Seed PyTorch's global generators, the host's and that of `device`, from these numbers."""
    # torch.manual_seed seeds every kind of device and records a call stack for a missing one, which
    # costs half a millisecond for every image.
    torch.default_generator.manual_seed(mix_seeds(*numbers))
    if device.type == "cuda":
        torch.cuda.manual_seed(mix_seeds(*numbers))


def seed_library_generators(*numbers: int) -> None:
    """Seed the generators of `random` and NumPy, on which a network's own code may draw."""
    random.seed(mix_seeds(*numbers))
    np.random.seed(mix_seeds(*numbers) % 2**32)


@contextmanager
def fork_library_generators() -> Iterator[None]:
    """Restore the generators of `random` and NumPy behind what is done within."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def mix_seeds(*numbers: int) -> int:
    """Mix several numbers into one seed by splitmix64 (Steele et al. 2014)."""
    mask = (1 << 64) - 1
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


def shuffle_indices(images: int, chunks: Sequence[int], seed: int, epoch: int) -> torch.Tensor:
    """Return a permutation of the images, which mixes a few chunks at a time."""
    generator = seeded_generator(seed, epoch)
    if not chunks:
        return torch.randperm(images, generator=generator)
    ends = torch.tensor(chunks).cumsum(0).tolist()
    runs = [torch.arange(end - size, end) for size, end in zip(chunks, ends, strict=True)]
    shuffled = torch.randperm(len(runs), generator=generator).tolist()
    mixed: list[torch.Tensor] = []
    for at in range(0, len(runs), CHUNKS_PER_WINDOW):
        window = torch.cat([runs[chunk] for chunk in shuffled[at : at + CHUNKS_PER_WINDOW]])
        mixed.append(window[torch.randperm(len(window), generator=generator)])
    return torch.cat(mixed)


class SamplingOrder(Sampler[BatchSelection]):
    """Full batches of one epoch; the remainder of the division is left out."""

    def __init__(
        self, images: int, chunks: Sequence[int], batch_images: int, seed: int, share: ProcessShare
    ) -> None:
        self._images = images
        self._chunks = chunks
        self._seed = seed
        self._share = share
        self._batch_images = batch_images
        self._micro_batch_images = share.images_per_micro_batch(batch_images)
        self.epoch = 0
        self.start: tuple[int, int] = (-1, 0)
        """Epoch and micro-batch at which a resumed run goes on."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Lightning calls this before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of micro-batches of an epoch."""
        return self._images // self._batch_images * self._share.micro_batches

    def __iter__(self) -> Iterator[BatchSelection]:
        epoch = self.epoch
        order = shuffle_indices(self._images, self._chunks, self._seed, epoch)
        done = self.start[1] if self.start[0] == epoch else 0
        for micro_batch in range(done, len(self)):
            step, part = divmod(micro_batch, self._share.micro_batches)
            first = (part * self._share.processes + self._share.rank) * self._micro_batch_images
            at = step * self._batch_images + first
            indices = tuple(order[at : at + self._micro_batch_images].tolist())
            yield BatchSelection(epoch, step, first, self._batch_images, indices)


def sequential_selections(
    images: int, batch_images: int, share: ProcessShare
) -> list[BatchSelection]:
    """Return held-out images in stored order, dealt out to the processes in turn."""
    indices = range(share.rank, images, share.processes)
    starts = range(0, len(indices), batch_images)
    parts = [tuple(indices[at : at + batch_images]) for at in starts]
    return [
        BatchSelection(0, at, 0, batch_images, part) for at, part in zip(starts, parts, strict=True)
    ]
