"""Tests that every data set passes.

Inherit the suite and give it its fixtures:

    class TestMine(DatasetSuite):
        @pytest.fixture
        def open_mine(self): return lambda: open_mine(DataSettings(root="photographs"))
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch

from nnstretch.train.data.dataset import Dataset, Images, check_dataset

MOST_IMAGES = 64
"""Images of each part that are read, evenly spread."""


class DatasetSuite:
    """Tests over a fixture `open_mine`, which opens the data set anew at every call."""

    @pytest.fixture
    def dataset(self, open_mine: Callable[[], Dataset]) -> Dataset:
        """Return the data set, checked as `nnstretch train` checks it."""
        return check_dataset(open_mine(), "under test")

    def test_every_image_is_bytes_of_three_colors_with_a_class(self, dataset: Dataset) -> None:
        """Check form and class of images all over both parts."""
        for images in (dataset.train, dataset.held):
            for index in spread(images):
                image, label = images[index]
                assert image.dtype == torch.uint8
                assert image.dim() == 3
                assert len(image) == 3
                assert 0 <= label < len(dataset.classes)

    def test_it_is_the_same_whenever_it_is_opened(
        self, dataset: Dataset, open_mine: Callable[[], Dataset]
    ) -> None:
        """Check classes, numbers, digests and images: an interrupted training goes on with them."""
        again = check_dataset(open_mine(), "under test")
        assert again.classes == dataset.classes
        for images, twins in ((dataset.train, again.train), (dataset.held, again.held)):
            assert len(images) == len(twins)
            assert images.digest() == twins.digest()
            assert_equal_images(images, twins)

    def test_an_image_does_not_change_when_others_are_read(self, dataset: Dataset) -> None:
        """Check that order does not matter: training shuffles, and several processes read."""
        for images in (dataset.train, dataset.held):
            indices = spread(images)
            forwards = {index: images[index][0].clone() for index in indices}
            for index in reversed(indices):
                assert torch.equal(images[index][0], forwards[index])

    def test_the_two_parts_have_digests_of_their_own(self, dataset: Dataset) -> None:
        """Check that no image counts as held out while all of them are trained on."""
        assert dataset.train.digest() != dataset.held.digest()

    def test_it_can_be_sent_to_processes_that_decode(self, dataset: Dataset) -> None:
        """Check a copy by pickle, as `data.workers` makes where processes are not forked."""
        for images in (dataset.train, dataset.held):
            assert_equal_images(images, pickle.loads(pickle.dumps(images)))


def spread(images: Images) -> range:
    """Return some indices of images, evenly spread."""
    return range(0, len(images), max(1, len(images) // MOST_IMAGES))


def assert_equal_images(images: Images, twins: Images) -> None:
    """Check that some images and their classes are equal."""
    for index in spread(images):
        (image, label), (twin, twin_label) = images[index], twins[index]
        assert label == twin_label
        assert torch.equal(image, twin)
