"""Digits, their order, and how processes and micro-batches share them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.trainings import SMALL

from nnstretch.errors import BadInput
from nnstretch.train import load_held_out
from nnstretch.train.data import Pictures, open_dataset
from nnstretch.train.data.dataset import InMemoryImages
from nnstretch.train.data.sampling_order import (
    BatchSelection,
    ProcessShare,
    SamplingOrder,
    mix_seeds,
    seed_global_generators,
    shuffle_indices,
)
from nnstretch.train.data.transforms import augment_batch, draw_affine_matrices, warp_images
from nnstretch.train.recipe import AugmentSettings, DataSettings, Recipe


def digits() -> tuple[InMemoryImages, InMemoryImages]:
    dataset = open_dataset(SMALL.data)
    assert isinstance(dataset.train, InMemoryImages)
    assert isinstance(dataset.held, InMemoryImages)
    return dataset.train, dataset.held


def test_the_split_holds_out_a_fifth_of_every_class_and_shares_nothing() -> None:
    train, held = digits()
    assert (len(train), len(held)) == (1437, 360)
    share = torch.bincount(held.labels) / (
        torch.bincount(held.labels) + torch.bincount(train.labels)
    )
    assert share.min() > 0.19
    assert share.max() < 0.21


def test_held_out_images_are_what_a_network_takes() -> None:
    images, labels = load_held_out(SMALL.data)
    assert images.shape == (360, 3, 16, 16)
    assert abs(float(images.mean())) < 0.05
    assert abs(float(images.std()) - 1) < 0.05
    assert set(labels.tolist()) == set(range(10))


def seen(
    augment: AugmentSettings, seed: int = 0, epoch: int = 0, first: int = 0, count: int = 8
) -> torch.Tensor:
    images = open_dataset(SMALL.data).train.images[first : first + count]  # type: ignore[attr-defined]
    return augment_batch(
        images,
        BatchSelection(epoch, 3, first, 8, tuple(range(first, first + count))),
        seed,
        augment,
        open_dataset(SMALL.data),
    )


def test_augmentation_of_zero_changes_nothing() -> None:
    images = digits()[0].images[:8].float() / 255
    still = warp_images(
        images,
        draw_affine_matrices(BatchSelection(0, 0, 0, 8, tuple(range(8))), 0, AugmentSettings()),
    )
    assert torch.allclose(still, images, atol=1e-5)


def test_augmentation_is_as_exact_in_bf16() -> None:
    """A grid of 8 significant bits moves pixels by a twentieth, at 224 px by half of one."""
    augment = AugmentSettings(shift=0.1, rotate_deg=10.0, scale=0.2)
    exact = seen(augment)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(seen(augment), exact)


def test_augmentation_depends_on_seed_and_epoch_and_not_on_how_a_batch_is_shared_out() -> None:
    whole = seen(SMALL.augment)
    assert torch.equal(whole, seen(SMALL.augment))
    assert torch.equal(
        whole,
        torch.cat([seen(SMALL.augment, first=0, count=4), seen(SMALL.augment, first=4, count=4)]),
    )
    assert not torch.equal(whole, seen(SMALL.augment, seed=1))
    assert not torch.equal(whole, seen(SMALL.augment, epoch=1))


def picks(
    images: int,
    batch_images: int,
    epoch: int,
    share: ProcessShare,
    start: tuple[int, int] = (-1, 0),
) -> list[BatchSelection]:
    order = SamplingOrder(images, (), batch_images, 3, share)
    order.set_epoch(epoch)
    order.start = start
    return list(order)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 5))
def test_batches_are_full_and_hold_every_image_at_most_once(
    images: int, batch_images: int, epoch: int
) -> None:
    batches = [pick.indices for pick in picks(images, batch_images, epoch, ProcessShare())]
    seen = [index for batch in batches for index in batch]
    assert (
        len(batches)
        == len(SamplingOrder(images, (), batch_images, 3, ProcessShare()))
        == images // batch_images
    )
    assert len(seen) == len(set(seen)) == len(batches) * batch_images


@given(
    st.integers(1, 200),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_processes_and_micro_batches_share_out_the_same_batches(
    images: int, own: int, processes: int, micro: int, epoch: int, done: int
) -> None:
    batch_images = own * processes * micro
    whole = picks(images, batch_images, epoch, ProcessShare())
    shares = [
        picks(images, batch_images, epoch, ProcessShare(rank, processes, micro))
        for rank in range(processes)
    ]
    assert len({len(share) for share in shares}) == 1
    for pick in whole:
        parts = sorted(
            (p for share in shares for p in share if p.step == pick.step),
            key=lambda p: p.first_position,
        )
        assert sum((p.indices for p in parts), ()) == pick.indices
        assert [p.first_position for p in parts] == list(range(0, batch_images, own))
    resumed = picks(
        images, batch_images, epoch, ProcessShare(0, processes, micro), start=(epoch, done)
    )
    assert resumed == shares[0][done:]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 3))
def test_images_in_chunks_are_all_seen_and_few_chunks_are_open_at_once(
    chunks: list[int], epoch: int
) -> None:
    order = shuffle_indices(sum(chunks), chunks, 0, epoch).tolist()
    assert sorted(order) == list(range(sum(chunks)))
    owner = [number for number, size in enumerate(chunks) for _ in range(size)]
    last = {owner[image]: at for at, image in enumerate(order)}
    first = {
        chunk: order_at
        for order_at, chunk in reversed([(at, owner[image]) for at, image in enumerate(order)])
    }
    assert max(sum(first[c] <= at <= last[c] for c in first) for at in range(len(order))) <= 8


def test_a_batch_that_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(
        BadInput,
        match=(
            r"data\.batch_images is 10, 4 processes of 1 micro-batches, it must be a multiple of 4"
        ),
    ):
        ProcessShare(0, 4).images_per_micro_batch(10)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(BadInput, match=r"batch_images is 1000.*179 images"):
        Pictures(Recipe(data=DataSettings(image_px=8, batch_images=1000, held_out=0.9)))


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
def test_global_seeds_begin_the_stream_that_pytorch_begins_for_the_same_seed(
    numbers: list[int],
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix_seeds(*numbers))
        expected = torch.rand(3)
        torch.rand(5)
        seed_global_generators(torch.device("cpu"), *numbers)
        assert torch.equal(torch.rand(3), expected)


def test_an_image_is_seeded_where_it_is_drawn_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.manual_seed writes down the call stack for every kind of device that is not there.

    Slow, if often.
    """
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("seeded everywhere"))
    augment = AugmentSettings(flip=0.5)
    pictures = Pictures(Recipe(data=replace(SMALL.data, held_out=0.9), augment=augment))
    assert sum(len(batch) for batch in pictures.train_dataloader()) > 0
