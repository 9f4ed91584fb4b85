"""Images packed into a few large files by litData, for network storage and millions of images.

`root` holds `classes.json`, `train` and `val`; each of the two is a litData folder of pairs
(encoded image, class).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from torch import Tensor

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.files.decode import decode, require_format
from nnstretch.files.json_text import read_json
from nnstretch.files.limits import Length, Range
from nnstretch.files.read import as_path
from nnstretch.train.data.dataset import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Color,
    Dataset,
    UnreadableImage,
    arrays_digest,
)
from nnstretch.train.data.decode import decode_image
from nnstretch.train.data.shard_index import INDEX_FILE, images_per_chunk

if TYPE_CHECKING:
    from litdata import StreamingDataset

CLASSES_FORMAT = 1
CLASSES_FILE = "classes.json"
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(above=0, most=1)]


@dataclass(frozen=True, slots=True)
class ClassesFile:
    """Names of the classes, and mean and deviation of the colors of images."""

    format: int
    classes: Annotated[tuple[str, ...], Length(2, 1 << 20)]
    mean: tuple[Share, Share, Share] = IMAGENET_MEAN
    std: tuple[PositiveShare, PositiveShare, PositiveShare] = IMAGENET_STD


@dataclass(slots=True, eq=False)
class ShardedImages:
    """Images of one litData folder, read in any order."""

    folder: Path
    classes: int
    chunks: tuple[int, ...]
    _reader_by_process: tuple[int, StreamingDataset] | None = field(default=None, repr=False)
    """Process id and its reader: locks and mapped files must not cross a fork."""

    def __len__(self) -> int:
        return sum(self.chunks)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        where = f"image {index} of {self.folder}"
        try:
            data, label = self.process_reader()[index]
        # litData checks nothing: damage inside a chunk may show as any error.
        except Exception as error:
            raise UnreadableImage(
                f"cannot read a shard, {where}, {type(error).__name__}:"
                f" {' '.join(str(error).split())[:120]}"
            ) from None
        if not 0 <= label < self.classes:
            raise UnreadableImage(f"class {label}, {where}, known are {self.classes}")
        return decode_image(bytes(data), where), int(label)

    def digest(self) -> str:
        """Return a digest of the list of files and their sizes."""
        index = (self.folder / INDEX_FILE).read_bytes()
        return arrays_digest(np.frombuffer(index, dtype=np.uint8))

    def process_reader(self) -> StreamingDataset:
        """Return this process's reader, opened once."""
        if self._reader_by_process is None or self._reader_by_process[0] != os.getpid():
            from litdata import StreamingDataset

            # One item at a time: litData would unpack the whole chunk around each.
            opened = StreamingDataset(self.folder.resolve(), batch_decode=0)  # type: ignore[arg-type]
            self._reader_by_process = (os.getpid(), opened)
        return self._reader_by_process[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedImages, (self.folder, self.classes, self.chunks)


def open_shards(root: str) -> Dataset:
    """Open shards in a local or mounted folder, whose index is checked before litData reads it.

    Raises BadInput for missing files and BrokenFile for changed ones.
    """
    folder = as_path(root, "data.root")
    if "://" in str(root):
        raise BadInput(
            f"shards on another machine, {root}, needed is a folder; mount it or copy it"
        )
    if not folder.is_dir():
        raise BadInput(
            f"no folder of shards, {root},"
            f" {'it is a file' if folder.exists() else 'nothing is there'}"
        )
    classes, mean, std = read_classes(folder / CLASSES_FILE)
    train = ShardedImages(folder / "train", len(classes), images_per_chunk(folder / "train"))
    held_out = ShardedImages(folder / "val", len(classes), images_per_chunk(folder / "val"))
    return Dataset(train, held_out, classes, mean, std)


SHARD_WRITER = "nnstretch.train.data.shard_writer"


def read_classes(path: Path) -> tuple[tuple[str, ...], Color, Color]:
    """Read names, mean and deviation. Raises BadInput or BrokenFile."""
    try:
        data = read_json(path)
    except UnknownName as error:
        raise BadInput(
            f"no {path.name}, {path.parent}, {error}, make shards with python -m {SHARD_WRITER}"
        ) from None
    try:
        require_format(data, (CLASSES_FORMAT,))
        file: ClassesFile = decode(ClassesFile, data, "classes")
    except ValueError as error:
        raise BrokenFile(f"not a list of classes, {path}, {error}") from None
    return file.classes, file.mean, file.std
