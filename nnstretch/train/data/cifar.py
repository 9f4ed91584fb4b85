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
"""Published mean and deviation (CIFAR-100: github.com/weiaicunzai/pytorch-cifar100)."""


def open_cifar(root: Path, classes: int, download: bool) -> Dataset:
    """Open CIFAR from `root`/cifar-10-batches-py or `root`/cifar-100-python, or download it there.

    Raises BadInput where it is missing or not the published one.
    """
    from torchvision import datasets

    kind: Any = {10: datasets.CIFAR10, 100: datasets.CIFAR100}.get(classes)
    if kind is None:
        raise BadInput(f"CIFAR of {classes} classes, {root}, there are 10 and 100")
    with lock_download(Path(root)) if download else nullcontext():
        train = open_split(kind, Path(root), classes, True, download)
        held_out = open_split(kind, Path(root), classes, False, download)
    images = to_in_memory_images(train)
    names = tuple(train.classes)
    return Dataset(images, to_in_memory_images(held_out), names, *COLOR_STATISTICS[classes])


@contextmanager
def lock_download(root: Path) -> Iterator[None]:
    """Let one process at a time download. Raises BadInput when the folder cannot be written."""
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
    """Open a split through torchvision. Raises BadInput when a file is not the published one."""
    # The files are pickles, which run code when read: torchvision reads none whose MD5 is not the
    # published one. Read these files in no other way.
    try:
        return kind(str(root), train=train, download=download)
    except (OSError, RuntimeError) as error:
        text = " ".join(str(error).split())
        wrong = find_bad_file(kind, root) or f"{root / kind.base_folder}, {text}"
        advice = f"unpack {kind.filename} into {root} or set data.download"
        if download:
            advice = f"downloading failed: {text}"
        raise BadInput(f"CIFAR-{classes} cannot be read, {wrong}; {advice}") from None


def find_bad_file(kind: Any, root: Path) -> str | None:
    """Return in words the first file that is missing or not the published one."""
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
