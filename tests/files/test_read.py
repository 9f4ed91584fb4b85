"""What is no ordinary file of a fair size is refused at once, by every reader of files."""

from __future__ import annotations

import codecs
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.schedule_file import read_schedule
from nnstretch.bundle.bundle import read_bundle
from nnstretch.capture import load_model
from nnstretch.errors import BadInput, BrokenFile, NnstretchError, UnknownName
from nnstretch.files.journal import read_journal
from nnstretch.files.json_text import read_json
from nnstretch.files.plan_yaml import read_plan
from nnstretch.files.read import as_path, check_file, file_sha256, read_text
from nnstretch.files.safetensors_header import check_header
from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.files.workload.arrival_csv import read_arrivals
from nnstretch.files.workload.measured_costs import read_measured_costs
from nnstretch.files.workload.service_record import read_record
from nnstretch.files.workload.sweep_yaml import read_sweep
from nnstretch.files.workload.workload_yaml import read_workload
from nnstretch.predict import load_soc, predict_ops
from nnstretch.profile.sampling.journal import read_medleys
from nnstretch.report import write_report
from nnstretch.run.results.npy_files import read_npy
from nnstretch.stretch.published.anynet import read_config
from nnstretch.study.storage import open_storage
from nnstretch.train import load_recipe, load_weights
from nnstretch.train.checkpoints import SafeCheckpoint
from nnstretch.train.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, InMemoryImages
from nnstretch.train.data.decode import read_image_bytes
from nnstretch.train.data.shard_writer import MIN_CHUNK_BYTES, write_dataset
from nnstretch.train.data.shards import open_shards

TERABYTE = 1 << 40


def soc_of(path: Path) -> object:
    folder = path.parent / "chip"
    folder.mkdir(exist_ok=True)
    (folder / "soc.json").symlink_to(path)
    return load_soc(folder)


def shards_of(path: Path, name: str) -> object:
    """Open shards of which one file is another's."""
    root = path.parent / "shards"
    if not root.exists():
        empty = InMemoryImages(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4) % 2)
        write_dataset(
            Dataset(empty, empty, ("a", "b"), IMAGENET_MEAN, IMAGENET_STD), root, MIN_CHUNK_BYTES
        )
    (root / name).unlink()
    (root / name).symlink_to(path)
    opened = open_shards(str(root))
    return [opened.train[index] for index in range(4)]


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "plan": (".yaml", read_plan),
    "recipe": (".yaml", load_recipe),
    "configuration": (".yaml", read_config),
    "chip": (".json", soc_of),
    "json": (".json", read_json),
    "journal": (".jsonl", read_journal),
    "operator list": (".csv", lambda path: predict_ops(str(path), load_soc("mi9"))),
    "bundle": (".nns", read_bundle),
    "array": (".npy", read_npy),
    "onnx": (".onnx", lambda path: load_model(str(path))),
    "pt2": (".pt2", lambda path: load_model(str(path))),
    "factory": (".py", lambda path: load_model(f"{path}:make")),
    "weights": (".safetensors", lambda path: load_weights(load_model("timm:resnet10t"), path)),
    "image": (".png", read_image_bytes),
    "hash": (".bin", lambda path: file_sha256(path, "file")),
    "report": (".json", lambda path: write_report(path.parent, path.parent / "page.html")),
    "workload": (".yaml", read_workload),
    "sweep": (".yaml", read_sweep),
    "accelerator": (".yaml", lambda path: load_accelerator(str(path))),
    "schedule": (".yaml", read_schedule),
    "arrivals": (".csv", read_arrivals),
    "costs": (".json", read_measured_costs),
    "record": (".jsonl", read_record),
    "tasks": (".json", read_task_graph),
    "standard tasks": (".stg", lambda path: read_task_graph(path, "2")),
    "profile": (".jsonl", read_medleys),
    "training state": (".safetensors", SafeCheckpoint().load_checkpoint),
    "study": (".log", lambda path: open_storage(str(path))),
    "classes of shards": (".json", lambda path: shards_of(path, "classes.json")),
    "index of shards": (".json", lambda path: shards_of(path, "train/index.json")),
    "chunk of shards": (".bin", lambda path: shards_of(path, "train/chunk-0-0.bin")),
}


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path holds 108 letters
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TERABYTE)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": make_fifo,
    "socket": make_socket,
    "folder": Path.mkdir,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "sparse": make_sparse,
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def working_folder() -> Iterator[None]:
    before = Path.cwd()
    yield
    os.chdir(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.usefixtures("working_folder")
def test_what_is_no_file_or_too_large_is_refused_at_once(
    reader: str, kind: str, tmp_path: Path
) -> None:
    ending, read = READERS[reader]
    name = "search.json" if reader == "report" else f"thing{ending}"
    path = tmp_path / name
    KINDS[kind](path)
    if kind == "loop" and reader == "journal":
        assert read(path) == []  # none yet, as for no file
        return
    with pytest.raises(NnstretchError) as refusal:
        read(path)
    assert len(str(refusal.value)) < 1000
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (None, "plan is NoneType, needed is a path as text or Path"),
        (b"plan.yaml", "plan is bytes"),
        (3, "plan is int"),
        ("", "plan is '', no file"),
        ("a\0b", "no file can be called so"),
        ("a\ud800b", "plan is 'a\\\\ud800b', no file can be called so"),
        ("x" * 5000, "5000 letters are too long"),
        ("x/" * 2500, "5000 letters are too long"),
        ("y" * 300 + ".yaml", "305 letters are too long"),
    ],
)
def test_what_no_file_can_be_called_is_refused_by_the_name_of_the_argument(
    path: Any, why: str
) -> None:
    for read in (read_plan, lambda path: as_path(path, "plan")):
        with pytest.raises(BadInput) as refusal:
            read(path)
        assert why in str(refusal.value)
        assert len(str(refusal.value)) < 200


def test_a_missing_file_and_one_without_permission_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no plan .*gone, the file does not exist"):
        check_file(tmp_path / "gone", "plan", 10)
    (tmp_path / "file").write_text("0123456789")
    assert check_file(tmp_path / "file", "plan", 10) == 10
    with pytest.raises(BrokenFile, match="too large, 10 bytes, needed are at most 9"):
        check_file(tmp_path / "file", "plan", 9)
    with pytest.raises(UnknownName, match="Not a directory"):
        check_file(tmp_path / "file" / "below", "plan", 10)
    (tmp_path / "file").write_bytes(b"ab\xff")
    with pytest.raises(BrokenFile, match="is no text, byte 2"):
        read_text(tmp_path / "file", "plan")


def weights(header: str, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    text = header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


TENSOR = '"dtype":"F32","shape":[2],"data_offsets":[0,8]'


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"\xff" * 8, "a header of 18446744073709551615 bytes in a file of 8"),
        (weights("{}", length=1 << 40), "a header of 1099511627776 bytes in a file of 18"),
        (weights(f'{{"a":{{{TENSOR}}},"a":{{{TENSOR}}}}}'), "a key twice among ['a', 'a']"),
        (weights(f'{{"a":{{"dtype":"F16",{TENSOR}}}}}'), "a key twice among"),
        (weights(f'{{"a":{{{TENSOR},"shape":[2]}}}}'), "a key twice among"),
        (weights(f'{{"a":{{{TENSOR}}},"b":{{{TENSOR}}}}}'), "b begins at byte 0, expected 8"),
        (weights(f'{{"a":{{{TENSOR}}}}}', b"\0" * 4), "tensors end at byte 8, the file has 4"),
        (weights(f'{{"a":{{{TENSOR}}}}}', b"\0" * 9), "tensors end at byte 8, the file has 9"),
        (weights('{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}'), "needs 8 bytes"),
        (weights('{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}'), "leaves a gap"),
        (weights('{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}'), "-2 is out of range"),
        (weights('{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}'), "unknown dtype 'F99'"),
        (weights('{"a":{"dtype":null,"shape":[2],"data_offsets":[0,8]}}'), "header.a.dtype"),
        (weights('{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}'), "expected int"),
        (weights("[]"), "its header is list"),
        (weights('{"__metadata__":{"a":1}}', b""), "__metadata__.a, '1' is int, expected str"),
    ],
)
def test_a_forged_header_of_weights_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "forged.safetensors"
    path.write_bytes(content)
    with pytest.raises(BrokenFile) as refusal:
        check_header(path)
    assert why in str(refusal.value)
    with pytest.raises(BrokenFile, match="not a safetensors file"):
        load_weights(load_model("timm:resnet10t"), path)


def test_a_sound_header_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "sound.safetensors"
    path.write_bytes(weights(f'{{"__metadata__":{{"a":"b"}},"a":{{{TENSOR}}}}}'))
    check_header(path)


def test_the_mark_that_editors_put_before_a_text_is_none_of_it(tmp_path: Path) -> None:
    """A spreadsheet's CSV began with a column of another name."""
    for name, text in {
        "plan.yaml": "a: 1\n",
        "ops.csv": "config,part\n",
        "tasks.json": "{}",
    }.items():
        path = tmp_path / name
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        assert read_text(path, "text") == text
    assert read_json(tmp_path / "tasks.json") == {}


@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00"])
def test_an_array_whose_header_is_cut_off_or_none_is_refused(
    version: bytes, tmp_path: Path
) -> None:
    texts = (
        "{'descr': '<f4', 'shape': (1, 3",
        "{" * 2000,
        "'",
        "\x00" * 9,
        "(",
        "{1L: 2",
        "9" * 5000,
    )
    for text in texts:
        header = text.encode().ljust(117 + len(text)) + b"\n"
        size = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + version + size + header)
        with pytest.raises(BrokenFile, match="broken input"):
            read_npy(tmp_path / "a.npy")
