"""Catalog of the data sets that a recipe may name."""

from __future__ import annotations

from pathlib import Path

from nnstretch.capture.model_file import call_in_file
from nnstretch.errors import BadInput, one_line
from nnstretch.files.read import as_path
from nnstretch.train.data.dataset import Dataset, check_dataset
from nnstretch.train.recipe import DataSettings


def open_dataset(data: DataSettings) -> Dataset:
    """Open the data set that a recipe names.

    Raises BadInput or UnknownName where it is missing, or larger than memory.
    """
    try:
        return open_named_dataset(data)
    except MemoryError as error:
        raise BadInput(
            f"data set {data.name} does not fit into memory, {one_line(error)}, take smaller"
            " data.image_px or fewer images"
        ) from None


def open_named_dataset(data: DataSettings) -> Dataset:
    """Open a data set by name. Raises BadInput where data.root is missing, or is not read."""
    if data.name in ("digits", "shapes") and data.root:
        raise BadInput(
            f"data.root is {data.root}, data set {data.name}, it reads no folder (name `folder` for"
            " one of images)"
        )
    if ".py:" in data.name:
        path, _, function = data.name.rpartition(":")
        return check_dataset(call_in_file(Path(path), function, "data set", {}, data), data.name)
    if data.name == "digits":
        from nnstretch.train.data.digits import open_digits

        return open_digits(data.image_px, data.held_out, data.split_seed)
    if data.name == "shapes":
        from nnstretch.train.data.shapes import open_shapes

        per_class = data.images_per_class
        return open_shapes(data.image_px, per_class, max(1, per_class // 2), data.split_seed)
    if not data.root:
        raise BadInput(f"data.root is empty, data set {data.name}, give the folder it is in")
    root = as_path(data.root, "data.root")
    if data.name == "folder":
        from nnstretch.train.data.image_folder import open_folder

        return open_folder(root, data.held_out, data.split_seed)
    if data.name == "shards":
        from nnstretch.train.data.shards import open_shards

        return open_shards(data.root)
    from nnstretch.train.data.cifar import open_cifar

    return open_cifar(root, 10 if data.name == "cifar10" else 100, data.download)
