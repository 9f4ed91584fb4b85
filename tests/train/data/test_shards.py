"""Shards: what goes in comes out, in any process.

What was changed, or could run code, is refused.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from nnstretch.errors import BadInput, BrokenFile, NnstretchError
from nnstretch.train.data.dataset import Dataset, Images, InMemoryImages, UnreadableImage
from nnstretch.train.data.image_folder import open_folder
from nnstretch.train.data.shard_writer import main, write_dataset
from nnstretch.train.data.shards import open_shards

CHUNK_BYTES = 2048


def in_memory(count: int, seed: int) -> InMemoryImages:
    generator = torch.Generator().manual_seed(seed)
    return InMemoryImages(
        torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator),
        torch.arange(count) * 3 // max(1, count),
    )


def small() -> Dataset:
    return Dataset(
        in_memory(40, 0), in_memory(7, 1), ("a", "b", "c"), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    )


def contents(images: Images) -> list[tuple[bytes, int]]:
    return sorted(
        (image.numpy().tobytes(), label)
        for image, label in (images[index] for index in range(len(images)))
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(small(), tmp_path / "shards", CHUNK_BYTES)
    return tmp_path / "shards"


def test_shards_return_the_images_that_were_written(root: Path) -> None:
    before, after = small(), open_shards(str(root))
    assert (after.classes, after.mean, after.std) == (before.classes, before.mean, before.std)
    assert contents(after.train) == contents(before.train)
    assert contents(after.held) == contents(before.held)
    assert len(after.train.chunks) > 3
    assert sum(after.train.chunks) == 40
    assert len({after.train[index][1] for index in range(after.train.chunks[0])}) > 1, (
        "a chunk holds several classes"
    )
    with pytest.raises(IndexError):
        after.train[40]


def test_files_keep_their_own_bytes_and_any_number_of_workers_writes_the_same(
    tmp_path: Path,
) -> None:
    for number in range(12):
        folder = tmp_path / "set" / f"c{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((9, 7), 60 + number).convert("RGB").save(folder / f"{number}.jpg")
    dataset = open_folder(tmp_path / "set", 0.25, 0)
    for workers in (1, 3):
        write_dataset(dataset, tmp_path / f"by{workers}", CHUNK_BYTES, workers)
    one, three = (sorted((tmp_path / f"by{workers}" / "train").glob("*.bin")) for workers in (1, 3))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in three]
    assert contents(open_shards(str(tmp_path / "by1")).train) == contents(dataset.train)
    assert (tmp_path / "set" / "c0" / "0.jpg").read_bytes() in b"".join(
        file.read_bytes() for file in (tmp_path / "by1").rglob("*.bin")
    )


class AsTorch(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index]


def test_worker_processes_read_the_same_as_the_one_that_read_before(root: Path) -> None:
    images = open_shards(str(root)).train
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    alone = [images[index][0] for index in order]
    forked = DataLoader(
        AsTorch(images),
        batch_size=None,
        sampler=order,
        num_workers=2,
        multiprocessing_context="fork",
    )
    assert all(torch.equal(one, other) for one, (other, _) in zip(alone, forked, strict=True))
    assert torch.equal(pickle.loads(pickle.dumps(images))[order[0]][0], alone[0])


def test_each_process_opens_shards_for_itself(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_shards(str(root)).train
    first = images.process_reader()
    assert images.process_reader() is first
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert images.process_reader() is not first


def changed(change: Callable[[dict[str, Any]], None], path: Path) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_keys_of_a_shard_that_nothing_reads_are_no_fault(root: Path) -> None:
    changed(lambda data: data["chunks"][0].update(novelty=1), root / "train" / "index.json")
    assert len(open_shards(str(root)).train) == 40


def refusal(root: Path) -> str:
    with pytest.raises((BrokenFile, BadInput)) as caught:
        open_shards(str(root))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda data: data["config"].update(data_format=["pickle", "int"]),
            "index.config.data_format, ('pickle', 'int'), needed is",
        ),
        (
            lambda data: data["config"].update(data_format=["bytes", "int", "pickle"]),
            "needed is ['bytes', 'int']",
        ),
        (
            lambda data: data["config"].update(item_loader="ParquetLoader"),
            "unknown item_loader 'ParquetLoader'",
        ),
        (
            lambda data: data["config"].update(
                data_spec='[1, {"type": "os.system", "context": "null"}]'
            ),
            "needed is a pair of an image and its class",
        ),
        (lambda data: data["config"].pop("data_spec"), "key 'data_spec' is missing"),
        (
            lambda data: data["config"].update(compression="zstd"),
            "index.config, unknown key 'compression'",
        ),
        (lambda data: data["config"].update(novelty=1), "unknown key 'novelty'"),
        (
            lambda data: data["chunks"][0].update(filename="../../chunk-0-0.bin"),
            "index.chunks[0].filename, '../../chunk-0-0.bin', needed is a name",
        ),
        (lambda data: data["chunks"][0].update(filename="chunk-9-9.bin"), "shard missing"),
        (
            lambda data: data["chunks"][0].update(chunk_size=-1),
            "index.chunks[0].chunk_size, -1 is out of range",
        ),
        (lambda data: data["chunks"][0].update(chunk_bytes=1), "says 1"),
        (lambda data: data.update(chunks=[7]), "index.chunks[0], '7' is int, expected dict"),
        (lambda data: data.update(chunks=[]), "index.chunks, 0 items"),
        (lambda data: data.pop("config"), "key 'config' is missing"),
    ],
)
def test_an_index_of_another_form_is_refused(
    root: Path, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    changed(change, root / "train" / "index.json")
    message = refusal(root)
    assert told in message
    assert str(root / "train") in message


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("train/index.json", "{", "not JSON"),
        ("train/index.json", "[" * 100_000, "not JSON"),
        ("val/index.json", "[]", "index, '[]' is list, expected dict"),
        ("classes.json", "\x80", "not a list of classes|not JSON"),
        (
            "classes.json",
            '{"format": 1, "classes": ["a"]}',
            "classes.classes, 1 items, needed are 2 to",
        ),
        (
            "classes.json",
            '{"format": 1, "classes": ["a", "b"], "std": [0, 1, 1]}',
            "classes.std[0], 0.0 is out of range, needed is more than 0",
        ),
        ("classes.json", '{"format": 2}', "format 1"),
    ],
)
def test_broken_json_is_refused(root: Path, name: str, text: str, told: str) -> None:
    (root / name).write_text(text)
    message = refusal(root)
    assert any(part in message for part in told.split("|"))
    assert str(root / name) in message


def test_a_missing_shard_is_named(root: Path, tmp_path: Path) -> None:
    assert "nothing is there" in refusal(tmp_path / "none")
    with pytest.raises(BadInput, match="mount it or copy it"):
        open_shards("s3://bucket/shards")
    (root / "val" / "index.json").unlink()
    assert refusal(root) == f"no shards, {root / 'val'}, it has no index.json"
    (root / "classes.json").unlink()
    assert "python -m nnstretch.train.data.shard_writer" in refusal(root)


def test_a_shard_cut_short_is_refused(root: Path) -> None:
    file = root / "train" / "chunk-0-1.bin"
    file.write_bytes(file.read_bytes()[:-5])
    assert str(file) in refusal(root)


@settings_of_hypothesis(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damage_inside_a_shard_gives_an_image_or_one_line(root: Path, data: st.DataObject) -> None:
    file = root / "train" / "chunk-0-0.bin"
    whole = file.read_bytes()
    damaged = bytearray(whole)
    for _ in range(3):
        damaged[data.draw(st.integers(0, min(len(whole), 120) - 1))] = data.draw(
            st.integers(0, 255)
        )
    file.write_bytes(damaged)
    images = open_shards(str(root)).train
    problems = [
        problem for index in range(images.chunks[0]) if (problem := problem_of(images, index))
    ]
    file.write_bytes(whole)
    assert all("\n" not in problem and str(root / "train") in problem for problem in problems)


def problem_of(images: Images, index: int) -> str:
    try:
        images[index]
    except UnreadableImage as problem:
        return str(problem)
    return ""


def test_nothing_is_left_of_shards_that_were_not_finished(tmp_path: Path) -> None:
    class Half(InMemoryImages):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            if index == 3:
                raise UnreadableImage("number 3")
            return super().__getitem__(index)

    whole = in_memory(9, 0)
    for images, chunk_bytes in (
        (Half(whole.images, whole.labels), CHUNK_BYTES),
        (whole, 1),
        (in_memory(0, 0), CHUNK_BYTES),
    ):
        dataset = replace(small(), train=images)
        with pytest.raises(NnstretchError):
            write_dataset(dataset, tmp_path / "out", chunk_bytes)
        assert not list(tmp_path.iterdir())
    dataset = replace(small(), train=whole)
    write_dataset(dataset, tmp_path / "out", CHUNK_BYTES)
    with pytest.raises(BadInput, match="it is there already"):
        write_dataset(dataset, tmp_path / "out", CHUNK_BYTES)


def test_the_script_makes_shards_of_a_folder_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, name in (("train", "a"), ("train", "b"), ("val", "a"), ("val", "b")):
        (tmp_path / "set" / part / name).mkdir(parents=True)
        Image.effect_noise((9, 7), 60).save(tmp_path / "set" / part / name / "0.png")
    monkeypatch.setattr(
        "sys.argv",
        [
            "shard_writer",
            str(tmp_path / "set"),
            "--out",
            str(tmp_path / "out"),
            "--chunk-mb",
            "0.01",
        ],
    )
    (tmp_path / "set" / "val" / "a" / "0.png").write_bytes(b"none")
    assert main() == 1
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith(f"nnstretch: not a readable image, {tmp_path / 'set/val/a/0.png'}")
    assert not (tmp_path / "out").exists()
    Image.effect_noise((9, 7), 60).save(tmp_path / "set" / "val" / "a" / "0.png")
    assert main() == 0
    assert open_shards(str(tmp_path / "out")).classes == ("a", "b")
