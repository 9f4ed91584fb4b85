"""CIFAR's published files: what they hold, and what they refuse."""

from __future__ import annotations

import hashlib
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets as published

from nnstretch.errors import BadInput
from nnstretch.train.data.cifar import lock_download, open_cifar


def write_cifar(monkeypatch: pytest.MonkeyPatch, root: Path, classes: int) -> Path:
    """Five images a file, in the published form; the class is told their MD5."""
    kind = published.CIFAR10 if classes == 10 else published.CIFAR100
    folder = root / kind.base_folder
    folder.mkdir(parents=True)

    def write(name: str, content: dict[str, Any]) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(seed: int) -> dict[str, Any]:
        pixels = np.random.default_rng(seed).integers(0, 256, (5, 3072), dtype=np.uint8)
        return {"data": pixels, "labels" if classes == 10 else "fine_labels": [seed % 2] * 5}

    for part in ("train_list", "test_list"):
        files = [[name, write(name, batch(len(name)))] for name, _ in getattr(kind, part)]
        monkeypatch.setattr(kind, part, files)
    listed = write(
        kind.meta["filename"], {kind.meta["key"]: [f"class {number}" for number in range(classes)]}
    )
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": listed})
    return folder


@pytest.mark.parametrize(("classes", "images"), [(10, 25), (100, 5)])
def test_cifar_is_read_in_its_published_form(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, classes: int, images: int
) -> None:
    folder = write_cifar(monkeypatch, tmp_path, classes)
    dataset = open_cifar(tmp_path, classes, False)
    assert (len(dataset.train), len(dataset.held), len(dataset.classes)) == (images, 5, classes)
    with (folder / ("test_batch" if classes == 10 else "test")).open("rb") as file:
        raw = pickle.load(file)["data"]
    assert torch.equal(dataset.held[3][0], torch.from_numpy(raw[3]).view(3, 32, 32))


def test_processes_that_download_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []

    def download() -> None:
        with lock_download(tmp_path / "new"):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0.02)
            inside.pop()

    with ThreadPoolExecutor(4) as pool:
        for turn in [pool.submit(download) for _ in range(4)]:
            turn.result()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot download into"), lock_download(tmp_path / "file"):
        pass


def test_cifar_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput,
        match=(
            r"cifar-10-batches-py/data_batch_1, no such file; unpack cifar-10-python\.tar\.gz into"
        ),
    ):
        open_cifar(tmp_path, 10, False)
    with pytest.raises(BadInput, match="there are 10 and 100"):
        open_cifar(tmp_path, 20, False)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch", "batches.meta"])
def test_a_changed_cifar_file_is_refused_and_never_unpickled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    folder = write_cifar(monkeypatch, tmp_path, 10)
    (folder / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(BadInput, match=f"{name}, its MD5 is not the published"):
        open_cifar(tmp_path, 10, False)
    assert not (tmp_path / "ran").exists()
    pickle.loads((folder / name).read_bytes())
    assert (tmp_path / "ran").exists(), "the payload would have run"
