"""CIFAR-10 and CIFAR-100 through torchvision: 60,000 images of 32x32 pixels, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock

from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import Color, Dataset, InMemoryImages

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

COLOR_STATISTICS: dict[int, tuple[Color, Color]] = {
    10: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    100: ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""Mean and deviation over all pixels of the 50,000 training images, as published with most training
code (of CIFAR-100: github.com/weiaicunzai/pytorch-cifar100, conf/global_settings.py).
"""


def open_cifar(root: Path, classes: int, download: bool) -> Dataset:
    """Open CIFAR; `root` holds `cifar-10-batches-py` or `cifar-100-python`, or is where they are
    downloaded to.

    Raises BadInput.
    """
    from torchvision import datasets

    kind: Any = {10: datasets.CIFAR10, 100: datasets.CIFAR100}.get(classes)
    if kind is None:
        raise BadInput(f"CIFAR of {classes} classes, {root}, there are 10 and 100")
    with lock_download(Path(root)) if download else nullcontext():
        train, held_out = (
            open_split(kind, Path(root), classes, part, download) for part in (True, False)
        )
    return Dataset(
        to_in_memory_images(train),
        to_in_memory_images(held_out),
        tuple(train.classes),
        *COLOR_STATISTICS[classes],
    )


@contextmanager
def lock_download(root: Path) -> Iterator[None]:
    """Let one process at a time download.

    Of several that train together each opens the images, and would unpack them into those of
    another.

    Raises BadInput when the folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / ".download.lock")
        lock.acquire()
    except OSError as error:
        raise BadInput(
            f"cannot download into {root}, {error.strerror or error}, name another data.root"
        ) from None
    try:
        yield
    finally:
        lock.release()


def open_split(kind: Any, root: Path, classes: int, train: bool, download: bool) -> CIFAR10:
    """Open a split; the files are pickles, which run code when read, so their hashes are checked
    first.

    Torchvision first compares every file that it reads with the MD5 of the published one and reads
    none that differs: keep that gate, and read these files in no other way.

    Raises BadInput when the files are not the published ones.
    """
    try:
        return kind(str(root), train=train, download=download)
    except (OSError, RuntimeError) as error:
        text = " ".join(str(error).split())
        wrong = find_bad_file(kind, root) or f"{root / kind.base_folder}, {text}"
        done = (
            f"downloading failed: {text}"
            if download
            else f"unpack {kind.filename} into {root} or set data.download"
        )
        raise BadInput(f"CIFAR-{classes} cannot be read, {wrong}; {done}") from None


def find_bad_file(kind: Any, root: Path) -> str | None:
    """Return the first file that is missing or is not the published one, and which of the two."""
    from torchvision.datasets.utils import check_integrity

    published = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
    for name, md5 in published:
        path = root / kind.base_folder / name
        if not path.is_file():
            return f"{path}, no such file"
        try:
            if not check_integrity(str(path), md5):
                return f"{path}, its MD5 is not the published {md5}"
        except OSError as error:
            return f"{path}, {error.strerror}"
    return None


def to_in_memory_images(part: CIFAR10) -> InMemoryImages:
    """Return a part of CIFAR as images in memory."""
    pixels = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
    return InMemoryImages(pixels, torch.tensor(part.targets, dtype=torch.int64))
