"""Folders of image files: one folder a class, split as ImageNet is or held out by share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nnstretch.bundle.image_task import IMAGE_ENDINGS, is_image_name
from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, arrays_digest
from nnstretch.train.data.decode import decode_image, read_image_bytes

HELD_OUT_FOLDERS = ("val", "valid", "validation", "test")
"""Names of the folder beside `train`, in order of preference."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles:
    """Image files, each read and decoded when asked for."""

    root: Path
    names: NDArray[np.bytes_]
    """Paths below `root`; an array, as a million strings would be copied into every worker."""
    labels: NDArray[np.int64]
    chunks: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        data, label = self.read_encoded(index)
        return decode_image(data, str(self.file_path(index))), label

    def digest(self) -> str:
        """Return the SHA-256 of names, labels and sizes of the files."""
        root = os.fsencode(self.root)
        sizes = [file_size_bytes(os.path.join(root, bytes(name))) for name in self.names]
        return arrays_digest(self.names, self.labels, np.array(sizes, dtype=np.int64))

    def read_encoded(self, index: int) -> tuple[bytes, int]:
        """Return the bytes of a file and its class. Raises UnreadableImage."""
        return read_image_bytes(self.file_path(index)), int(self.labels[index])

    def file_path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / os.fsdecode(bytes(self.names[index]))


def file_size_bytes(path: bytes) -> int:
    """Return the size of a file; -1 of one that is gone, which shows when it is read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


@dataclass(frozen=True, slots=True)
class ImageListing:
    """Files of a folder of class folders."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[tuple[str, int], ...]
    """Paths below `root` with the numbers of their classes; class after class."""

    def select_files(self, files: Iterable[tuple[str, int]]) -> ImageFiles:
        """Return the chosen files with their labels."""
        chosen = sorted(files)
        names = np.array([os.fsencode(name) for name, _ in chosen])
        labels = np.array([label for _, label in chosen], dtype=np.int64)
        return ImageFiles(self.root, names, labels)


def open_folder(root: Path, held_out: float, split_seed: int) -> Dataset:
    """Open `root` with `train` and a folder of `HELD_OUT_FOLDERS`, or with class folders alone.

    Of class folders, the share `held_out` of every class is held out by file name and `split_seed`.
    Raises BadInput, which names the folder or class.
    """
    root = Path(root)
    folders = list_folders(root)
    held_out_name = next((name for name in HELD_OUT_FOLDERS if name in folders), None)
    if "train" in folders and held_out_name is not None:
        return split_by_folder(root / "train", root / held_out_name)
    refuse_lone_training_folder(root, {name for name in folders if not name.startswith(".")})
    images = find_images(root)
    if not 0 < held_out < 1:
        raise BadInput(
            f"held_out is {held_out}, image folder {root} without train and val, needed is a share"
            " between 0 and 1"
        )
    held_out_files = choose_held_out_files(images, held_out, split_seed)
    train = images.select_files(file for file in images.files if file not in held_out_files)
    validation = images.select_files(held_out_files)
    return Dataset(train, validation, images.classes, IMAGENET_MEAN, IMAGENET_STD)


def refuse_lone_training_folder(root: Path, folders: set[str]) -> None:
    """Refuse `train` alone, or beside a folder of the same classes under a name that says nothing.

    A class may be called `train`, too. Raises BadInput.
    """
    if "train" not in folders:
        return
    alike = list_folders(root / "train")
    named = [name for name in sorted(folders - {"train"}) if alike & list_folders(root / name)]
    if folders == {"train"} or named:
        beside = f"{root / named[0]} is not called so" if named else str(root)
        raise BadInput(
            f"images to be judged by are missing, {beside}, beside train needed is one of"
            f" {', '.join(HELD_OUT_FOLDERS)}"
        )


def split_by_folder(train_root: Path, held_root: Path) -> Dataset:
    """Open training and held-out images of two folders. Raises BadInput when classes differ."""
    train = find_images(train_root)
    held_out = find_images(held_root)
    folders: set[str] = set()
    for part in (train, held_out):
        folders.update(os.path.dirname(part.root / name) for name, _ in part.files)
    refuse_duplicate_folders(folders)
    differing = sorted(set(train.classes) ^ set(held_out.classes))
    if differing:
        roots = [train_root, held_root]
        present_root, missing_root = roots if differing[0] in train.classes else reversed(roots)
        raise BadInput(
            f"class {differing[0]} is in {present_root} but not in {missing_root}, {len(differing)}"
            " classes differ, both need the same"
        )
    validation = held_out.select_files(held_out.files)
    training = train.select_files(train.files)
    return Dataset(training, validation, train.classes, IMAGENET_MEAN, IMAGENET_STD)


def list_folders(root: Path) -> set[str]:
    """Return the names of folders in a folder. Raises BadInput where it cannot be read."""
    if not root.is_dir():
        raise BadInput(
            f"no image folder, {root}, {'it is a file' if root.exists() else 'nothing is there'}"
        )
    try:
        return {entry.name for entry in os.scandir(root) if entry.is_dir()}
    except OSError as error:
        raise BadInput(f"cannot read an image folder, {root}, {error.strerror}") from None


def find_images(root: Path) -> ImageListing:
    """Return every image file below the class folders of `root`, in order. Raises BadInput.

    Hidden files and folders are passed over.
    """
    from torchvision.datasets.folder import make_dataset

    classes = sorted(name for name in list_folders(root) if not name.startswith("."))
    if not classes:
        raise BadInput(f"no class folders, {root}, needed is one folder of images for each class")

    def is_image(path: str) -> bool:
        return is_image_name(os.path.relpath(path, root))

    numbers = {name: label for label, name in enumerate(classes)}
    try:
        images = make_dataset(str(root), numbers, is_valid_file=is_image, allow_empty=True)
    except OSError as error:
        raise BadInput(f"cannot read an image folder, {root}, {error.strerror or error}") from None
    refuse_empty_classes(root, classes, [label for _, label in images])
    refuse_duplicate_folders({os.path.dirname(path) for path, _ in images})
    files = tuple((os.path.relpath(path, root), label) for path, label in images)
    return ImageListing(root, tuple(classes), files)


def refuse_empty_classes(root: Path, classes: Sequence[str], labels: Sequence[int]) -> None:
    """Refuse classes without images, and a single class. Raises BadInput."""
    labelled = set(labels)
    empty = [name for label, name in enumerate(classes) if label not in labelled]
    if empty:
        others = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise BadInput(
            f"class {empty[0]} has no images, {root / empty[0]}{others}, needed is at least one"
            f" file named {' '.join(IMAGE_ENDINGS)}"
        )
    if len(classes) < 2:
        raise BadInput(f"only one class ({classes[0]}), {root}, needed are at least 2")


def refuse_duplicate_folders(folders: Iterable[str]) -> None:
    """Refuse a link between folders, which would list images twice. Raises BadInput."""
    known: dict[str, str] = {}
    for folder in sorted(folders):
        known_folder = known.setdefault(os.path.realpath(folder), folder)
        if known_folder != folder:
            raise BadInput(
                f"images would be there twice, {known_folder}, {folder} is a link to the same"
                " folder, remove the link"
            )


def choose_held_out_files(listing: ImageListing, share: float, seed: int) -> set[tuple[str, int]]:
    """Return the share of every class whose names hash lowest, so that new files move no others.

    Raises BadInput when a class has one image only.
    """
    by_class: list[list[tuple[str, int]]] = [[] for _ in listing.classes]
    for file in listing.files:
        by_class[file[1]].append(file)
    chosen: set[tuple[str, int]] = set()
    for name, files in zip(listing.classes, by_class, strict=True):
        if len(files) < 2:
            raise BadInput(
                f"class {name} has {len(files)} image, {listing.root / name}, to hold one out"
                " needed are at least 2"
            )
        count = min(max(round(len(files) * share), 1), len(files) - 1)
        chosen |= set(sorted(files, key=lambda file: split_hash(file[0], seed))[:count])
    return chosen


def split_hash(name: str, seed: int) -> bytes:
    """Return the hash that decides whether an image is held out."""
    return hashlib.sha256(f"{seed}/".encode() + os.fsencode(name)).digest()
