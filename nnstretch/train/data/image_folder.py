"""Folders of image files: one folder a class, split as ImageNet is or held out by share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, arrays_digest
from nnstretch.train.data.decode import decode_image, read_image_bytes

HELD_OUT_FOLDERS = ("val", "validation", "test")
"""Of the folder beside `train`; the first that is there is used."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles:
    """Image files, each read and decoded when asked for."""

    root: Path
    names: NDArray[np.bytes_]
    """Below `root`.

    One array: a million Python strings would be copied into every worker process.
    """
    labels: NDArray[np.int64]
    chunks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        data, label = self.read_encoded(index)
        return decode_image(data, str(self.file_path(index))), label

    def digest(self) -> str:
        """Return the SHA-256 of names and labels."""
        return arrays_digest(self.names, self.labels)

    def read_encoded(self, index: int) -> tuple[bytes, int]:
        """Return the file's own bytes and its class. Raises Unreadable."""
        return read_image_bytes(self.file_path(index)), int(self.labels[index])

    def file_path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / os.fsdecode(bytes(self.names[index]))


@dataclass(frozen=True, slots=True)
class ImageListing:
    """What a folder of class folders holds."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[tuple[str, int], ...]
    """Each path below `root`, and the number of its class; class after class."""

    def select_files(self, files: Iterable[tuple[str, int]]) -> ImageFiles:
        """Return the chosen files with their labels."""
        chosen = sorted(files)
        names = np.array([os.fsencode(name) for name, _ in chosen])
        return ImageFiles(
            self.root, names, np.array([label for _, label in chosen], dtype=np.int64)
        )


def open_folder(root: Path, held_out: float, split_seed: int) -> Dataset:
    """Open a folder; `root` holds `train` and `val` (or `validation`, or `test`), or the class
    folders themselves.

    Of class folders, the share `held_out` of every class is held out; it depends on the files'
    names and on `split_seed` alone. Mean and deviation are ImageNet's. Raises BadInput naming the
    folder or the class.
    """
    root = Path(root)
    inside = list_folders(root)
    held_out_name = next((name for name in HELD_OUT_FOLDERS if name in inside), None)
    if "train" in inside and held_out_name is not None:
        return split_by_folder(root / "train", root / held_out_name)
    if inside == {"train"}:
        raise BadInput(
            f"images to be judged by are missing, {root}, beside train needed is one of"
            f" {', '.join(HELD_OUT_FOLDERS)}"
        )
    images = find_images(root)
    if not 0 < held_out < 1:
        raise BadInput(
            f"held_out is {held_out}, image folder {root} without train and val, needed is a share"
            " between 0 and 1"
        )
    apart = choose_held_out_files(images, held_out, split_seed)
    train = images.select_files(file for file in images.files if file not in apart)
    return Dataset(train, images.select_files(apart), images.classes, IMAGENET_MEAN, IMAGENET_STD)


def split_by_folder(train_root: Path, held_root: Path) -> Dataset:
    """Return training and held-out images of two folders.

    Raises BadInput when the two have different classes.
    """
    train, held_out = find_images(train_root), find_images(held_root)
    refuse_duplicate_folders(
        {os.path.dirname(part.root / name) for part in (train, held_out) for name, _ in part.files}
    )
    differing = sorted(set(train.classes) ^ set(held_out.classes))
    if differing:
        present_root, missing_root = (
            (train_root, held_root) if differing[0] in train.classes else (held_root, train_root)
        )
        raise BadInput(
            f"class {differing[0]} is in {present_root} but not in {missing_root}, {len(differing)}"
            " classes differ, both need the same"
        )
    return Dataset(
        train.select_files(train.files),
        held_out.select_files(held_out.files),
        train.classes,
        IMAGENET_MEAN,
        IMAGENET_STD,
    )


def list_folders(root: Path) -> set[str]:
    """List folders. Raises BadInput for what is no folder or cannot be read."""
    if not root.is_dir():
        raise BadInput(
            f"no image folder, {root}, {'it is a file' if root.exists() else 'nothing is there'}"
        )
    try:
        return {entry.name for entry in os.scandir(root) if entry.is_dir()}
    except OSError as error:
        raise BadInput(f"cannot read an image folder, {root}, {error.strerror}") from None


def find_images(root: Path) -> ImageListing:
    """Return every image file below the class folders of `root`, in order. Raises BadInput."""
    from torchvision.datasets import ImageFolder

    if not list_folders(root):
        raise BadInput(f"no class folders, {root}, needed is one folder of images for each class")
    try:
        folder = ImageFolder(str(root), allow_empty=True)
    except OSError as error:
        raise BadInput(f"cannot read an image folder, {root}, {error.strerror or error}") from None
    counts = np.bincount(np.array(folder.targets, dtype=np.int64), minlength=len(folder.classes))
    if (counts == 0).any():
        empty = [name for name, count in zip(folder.classes, counts, strict=True) if not count]
        others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise BadInput(
            f"class {empty[0]} has no images, {root / empty[0]}{others}, needed is at least one"
        )
    if len(folder.classes) < 2:
        raise BadInput(f"only one class ({folder.classes[0]}), {root}, needed are at least 2")
    refuse_duplicate_folders({os.path.dirname(path) for path, _ in folder.samples})
    return ImageListing(
        root,
        tuple(folder.classes),
        tuple((os.path.relpath(path, root), label) for path, label in folder.samples),
    )


def refuse_duplicate_folders(folders: Iterable[str]) -> None:
    """Refuse a link to a folder above it, to another class or from held-out to training images: it
    would list images twice. Raises BadInput.
    """
    known: dict[str, str] = {}
    for folder in sorted(folders):
        known_folder = known.setdefault(os.path.realpath(folder), folder)
        if known_folder != folder:
            raise BadInput(
                f"images would be there twice, {known_folder}, {folder} is a link to the same"
                " folder, remove the link"
            )


def choose_held_out_files(listing: ImageListing, share: float, seed: int) -> set[tuple[str, int]]:
    """Return the share of every class whose names hash lowest.

    Files that come or go later leave the others where they are.

    Raises BadInput when a class has one image only.
    """
    by_class: list[list[tuple[str, int]]] = [[] for _ in listing.classes]
    for file in listing.files:
        by_class[file[1]].append(file)
    apart: set[tuple[str, int]] = set()
    for name, files in zip(listing.classes, by_class, strict=True):
        if len(files) < 2:
            raise BadInput(
                f"class {name} has {len(files)} image, {listing.root / name}, to hold one out"
                " needed are at least 2"
            )
        count = min(max(round(len(files) * share), 1), len(files) - 1)
        apart |= set(sorted(files, key=lambda file: split_hash(file[0], seed))[:count])
    return apart


def split_hash(name: str, seed: int) -> bytes:
    """Return the hash by which an image is held out."""
    return hashlib.sha256(f"{seed}/".encode() + os.fsencode(name)).digest()
