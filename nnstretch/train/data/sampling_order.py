"""In which order images are seen: a rule of (seed, epoch) alone.

The rule knows nothing of how many processes there are or where a run was interrupted: every process
takes its part of the same batches, and a resumed run goes on within the epoch at the batch that
came next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from nnstretch.errors import BadInput

CHUNKS_PER_WINDOW = 8
"""Stored runs that are shuffled into one another.

More mixes better, fewer are open at the same time.
"""


@dataclass(frozen=True, slots=True)
class BatchSelection:
    """Images of one micro-batch, and where they stand in the batch of all processes."""

    epoch: int
    step: int
    """Batch within the epoch."""
    first_position: int
    """Position of the first of them within the batch."""
    batch_images: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """Which part of every batch is this process's."""

    rank: int = 0
    processes: int = 1
    micro_batches: int = 1

    def images_per_micro_batch(self, batch_images: int) -> int:
        """Return images of one micro-batch.

        Raises BadInput where the batch cannot be shared out evenly.
        """
        parts = self.processes * self.micro_batches
        if batch_images % parts or batch_images < parts:
            raise BadInput(
                f"data.batch_images is {batch_images}, {self.processes} processes of"
                f" {self.micro_batches} micro-batches, it must be a multiple of {parts}"
            )
        return batch_images // parts


def seeded_generator(*numbers: int) -> torch.Generator:
    """Return a stream of random numbers of its own for each tuple of numbers."""
    return torch.Generator().manual_seed(mix_seeds(*numbers))


def seed_global_generators(device: torch.device, *numbers: int) -> None:
    """Seed PyTorch's global generators (the host's, and that of `device`) from this tuple.

    torch.manual_seed reaches every kind of device, and where there is none of a kind it writes down
    the whole call stack instead: half a millisecond, for every batch or every image.
    """
    torch.default_generator.manual_seed(mix_seeds(*numbers))
    if device.type == "cuda":
        torch.cuda.manual_seed(mix_seeds(*numbers))


def mix_seeds(*numbers: int) -> int:
    """Mix several numbers into one seed.

    Neighbours give unrelated ones (splitmix64, Steele et al. 2014).
    """
    mask, state = (1 << 64) - 1, 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


def shuffle_indices(images: int, chunks: Sequence[int], seed: int, epoch: int) -> torch.Tensor:
    """Return every image once, shuffled. Where images are stored in chunks, a few chunks at a time
    are mixed.
    """
    generator = seeded_generator(seed, epoch)
    if not chunks:
        return torch.randperm(images, generator=generator)
    ends = torch.tensor(chunks).cumsum(0).tolist()
    runs = [torch.arange(end - size, end) for size, end in zip(chunks, ends, strict=True)]
    shuffled = torch.randperm(len(runs), generator=generator).tolist()
    windows = [
        shuffled[at : at + CHUNKS_PER_WINDOW] for at in range(0, len(runs), CHUNKS_PER_WINDOW)
    ]
    mixed_runs = [torch.cat([runs[chunk] for chunk in window]) for window in windows]
    return torch.cat([run[torch.randperm(len(run), generator=generator)] for run in mixed_runs])


class SamplingOrder(Sampler[BatchSelection]):
    """Full batches of one epoch; what is left over waits for another epoch's order."""

    def __init__(
        self, images: int, chunks: Sequence[int], batch_images: int, seed: int, share: ProcessShare
    ) -> None:
        self._images, self._chunks, self._seed, self._share = images, chunks, seed, share
        self._batch_images, self._own = batch_images, share.images_per_micro_batch(batch_images)
        self.epoch = 0
        self.start: tuple[int, int] = (-1, 0)
        """Epoch and micro-batch at which a resumed run goes on."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Lightning calls this before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return how many micro-batches an epoch has."""
        return self._images // self._batch_images * self._share.micro_batches

    def __iter__(self) -> Iterator[BatchSelection]:
        epoch = self.epoch
        order = shuffle_indices(self._images, self._chunks, self._seed, epoch)
        done = self.start[1] if self.start[0] == epoch else 0
        for micro_batch in range(done, len(self)):
            step, part = divmod(micro_batch, self._share.micro_batches)
            first = (part * self._share.processes + self._share.rank) * self._own
            at = step * self._batch_images + first
            yield BatchSelection(
                epoch, step, first, self._batch_images, tuple(order[at : at + self._own].tolist())
            )


def sequential_selections(
    images: int, batch_images: int, share: ProcessShare
) -> list[BatchSelection]:
    """Return held-out images in their own order; every process takes each `processes`th of them."""
    numbers = range(share.rank, images, share.processes)
    return [
        BatchSelection(0, at, 0, batch_images, tuple(numbers[at : at + batch_images]))
        for at in range(0, len(numbers), batch_images)
    ]
