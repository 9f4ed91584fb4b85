"""Data sets: images in a known order, from memory, folders or shards.

dataset.py         data set protocol
catalog.py         data set of a recipe
batches.py         batches, unreadable images
datamodule.py      loaders for Lightning
sampling_order.py  deterministic order
transforms.py      image -> tensor
decode.py          image bytes -> tensor
image_folder.py    image folders
shards.py          litData shards
shard_index.py     litData's index, checked
shard_writer.py    images -> shards
digits.py          scikit-learn digits
cifar.py           CIFAR-10 and CIFAR-100
shapes.py          drawn shapes, 60 classes
calibration.py     images for int8
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch._interpreter import lazy_names

if TYPE_CHECKING:
    from nnstretch.train.data.batches import ImageBatch as ImageBatch
    from nnstretch.train.data.batches import prepare_images as prepare_images
    from nnstretch.train.data.catalog import open_dataset as open_dataset
    from nnstretch.train.data.datamodule import Pictures as Pictures
    from nnstretch.train.data.datamodule import load_held_out as load_held_out
    from nnstretch.train.data.dataset import Dataset as Dataset
    from nnstretch.train.data.dataset import Images as Images
    from nnstretch.train.data.dataset import InMemoryImages as InMemoryImages

_HOMES = {
    "ImageBatch": "batches",
    "Dataset": "dataset",
    "Images": "dataset",
    "InMemoryImages": "dataset",
    "Pictures": "datamodule",
    "load_held_out": "datamodule",
    "open_dataset": "catalog",
    "prepare_images": "batches",
}
__all__ = sorted(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
