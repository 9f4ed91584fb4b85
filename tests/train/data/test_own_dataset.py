"""A data set that a FILE.py of the user's own opens: what it may be, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nnstretch.cli import main
from nnstretch.errors import BadInput, NnstretchError
from nnstretch.train import DataSettings, load_held_out
from nnstretch.train.data.catalog import open_dataset
from nnstretch.train.data.dataset import Dataset, InMemoryImages, UnreadableImage

CODE = """
from dataclasses import replace

import torch
from nnstretch.train import Dataset, InMemoryImages

GREY = (0.5, 0.5, 0.5)

class Drawn:
    def __init__(self, images, bad=()):
        self.images, self.bad = images, bad
    def __len__(self):
        return self.images
    def __getitem__(self, index):
        if index in self.bad:
            raise OSError("the disk\\nis gone")
        image = torch.full((3, 20, 30), 80 * (index % 3), dtype=torch.uint8)
        return image, torch.tensor(index % 3)
    def digest(self):
        return str(self.images)

def dataset(train, held, classes=("dark", "grey", "bright"), mean=GREY, std=GREY):
    return Dataset(train, held, classes, mean, std)

def open_drawn(data):
    return dataset(Drawn(12), Drawn(6))

def in_memory(images, side, labels=None):
    labels = torch.arange(images) % 3 if labels is None else labels
    return InMemoryImages(torch.zeros(images, 3, side, side, dtype=torch.uint8), labels)

def open_memory(data):
    return dataset(in_memory(12, data.image_px), in_memory(6, data.image_px))
"""


def opened(
    folder: Path, body: str = "", function: str = "open_mine", **settings: object
) -> Dataset:
    """Open the data set of a file that has CODE and a function with this body."""
    file = folder / "mine.py"
    file.write_text(CODE + f"\ndef open_mine(data):\n    {body or 'pass'}\n")
    return open_dataset(DataSettings(name=f"{file}:{function}", **settings))  # type: ignore[arg-type]


def train_command(folder: Path, out: str) -> list[str]:
    """Train a network of three weights a class on what `opened` left in a folder."""
    (folder / "net.py").write_text(
        "from torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))\n"
    )
    words = ["train", "digits", "--model", f"{folder / 'net.py'}:make", "--data.image_px", "16"]
    words += ["--data.name", f"{folder / 'mine.py'}:open_mine", "--out", str(folder / out)]
    words += ["--data.batch_images", "4", "--trainer.max_epochs", "1"]
    return [*words, "--trainer.precise_norm_images", "0"]


def test_images_of_any_size_become_those_that_the_recipe_asks_for(tmp_path: Path) -> None:
    opened(tmp_path, function="open_drawn")
    settings = DataSettings(name=f"{tmp_path / 'mine.py'}:open_drawn", image_px=16)
    images, labels = load_held_out(settings)
    assert images.shape == (6, 3, 16, 16)
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    expected = (torch.tensor([0.0, 80.0, 160.0]) / 255 - 0.5) / 0.5
    assert torch.allclose(images[:3, 0, 8, 8], expected, atol=1e-6)


def test_images_in_memory_are_used_as_they_are(tmp_path: Path) -> None:
    dataset = opened(tmp_path, function="open_memory", image_px=24)
    assert isinstance(dataset.train, InMemoryImages)
    assert dataset.train.images.shape == (12, 3, 24, 24)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
@pytest.mark.parametrize("loss", [[], ["--loss.kind", "binary"], ["--augment.mixup", "0.5"]])
def test_labels_are_whole_numbers_of_any_size(tmp_path: Path, dtype: str, loss: list[str]) -> None:
    labels = f"(torch.arange(12) % 3).to(torch.{dtype})"
    opened(tmp_path, f"return dataset(in_memory(12, 16, {labels}), in_memory(12, 16, {labels}))")
    assert main([*train_command(tmp_path, "trained"), *loss]) == 0


def test_colors_are_whole_numbers_or_fractions(tmp_path: Path) -> None:
    dataset = opened(tmp_path, "return dataset(Drawn(6), Drawn(6), mean=(0, 0, 0), std=(1, 1, 1))")
    assert (dataset.mean, dataset.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return 3", "no data set from * it returned a int"),
        ("raise ValueError('no\\nfile')", "cannot make *:open_mine, ValueError: no file"),
        ("return dataset(Drawn(0), Drawn(6))", "its train has no images"),
        ("return dataset(Drawn(6), [])", "its held has no digest"),
        ("return dataset(Drawn(6), Drawn(6), 'ab')", "its classes are ab, needed is a tuple"),
        ("return dataset(Drawn(6), Drawn(6), ())", "its classes are (), needed is a tuple"),
        ("return dataset(Drawn(6), Drawn(6), ('a', 1))", "needed are names"),
        ("return dataset(Drawn(6), Drawn(6), ('a', 'a'))", "two of its classes have one name"),
        ("return dataset(Drawn(6), Drawn(6), mean=(0.5,))", "its mean is (0.5,), needed are three"),
        ("return dataset(Drawn(6), Drawn(6), mean=None)", "its mean is None, needed are three"),
        ("return dataset(Drawn(6), Drawn(6), std=(0.0, 1.0, 1.0))", "its std is (0.0, 1.0, 1.0)"),
        (
            "return dataset(replace(in_memory(6, 8), chunks=(4, 4)), Drawn(6))",
            "its train cannot be used, its chunks hold 8 images and it has 6",
        ),
        (
            "return dataset(Drawn(6), replace(in_memory(6, 8), chunks=('6',)))",
            "its held cannot be used, its chunks are a tuple, needed are whole numbers",
        ),
        (
            "return dataset(in_memory(6, 8, torch.arange(6)), Drawn(6))",
            "its train cannot be used, its class is 3, classes are numbered 0 to 2",
        ),
        (
            "return dataset(in_memory(6, 8, torch.zeros(5, dtype=int)), Drawn(6))",
            "its train cannot be used, it has 6 images and 5 labels",
        ),
        (
            "return dataset(in_memory(6, 8, torch.zeros(6)), Drawn(6))",
            "its train cannot be used, its labels are float32 [6], needed is a tensor of whole",
        ),
        (
            "return dataset(in_memory(6, 8, torch.zeros(6, 3, dtype=int)), Drawn(6))",
            "its train cannot be used, its labels are int64 [6, 3], needed is a tensor of whole",
        ),
        (
            "return dataset(in_memory(6, 8, [0, 1, 2, 0, 1, 2]), Drawn(6))",
            "its train cannot be used, its labels are a list, needed is a tensor of whole numbers",
        ),
        (
            "return dataset(Drawn(6), InMemoryImages([[0]], torch.zeros(1, dtype=int)))",
            "its held cannot be used, its images are a list, needed is a tensor, uint8 [images, 3",
        ),
        (
            "return dataset(in_memory(0, 8), Drawn(6))",
            "its train has no images",
        ),
        ("return dataset(Drawn(6), Drawn(6), std=(1.0, True, 1.0))", "its std is (1.0, True, 1.0)"),
        (
            "return dataset(InMemoryImages(torch.zeros(6, 3, 8, 8), torch.arange(6)), Drawn(6))",
            "its train cannot be used, it is float32 [3, 8, 8], needed is uint8 [3, height, width]",
        ),
    ],
)
def test_what_is_no_data_set_is_refused_in_one_line(tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(BadInput) as refusal:
        opened(tmp_path, body)
    before, _, after = why.rpartition("*")
    assert before.strip() in str(refusal.value)
    assert after in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_or_function_is_named(tmp_path: Path) -> None:
    with pytest.raises(NnstretchError, match=r"no factory 'open_yours', data set .*mine\.py"):
        opened(tmp_path, function="open_yours")
    with pytest.raises(NnstretchError, match=r"no data set absent\.py"):
        open_dataset(DataSettings(name="absent.py:f"))
    with pytest.raises(BadInput, match=r"unknown name 'digit', .* or FILE\.py:FUNCTION"):
        DataSettings(name="digit")


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("torch.zeros(3, 8, 8), 0", "it is float32 [3, 8, 8], needed is uint8"),
        ("torch.zeros(1, 8, 8, dtype=torch.uint8), 0", "it is uint8 [1, 8, 8], needed is uint8"),
        ("[[0]], 0", "it is a list, needed is a tensor"),
        ("torch.zeros(3, 8, 8, dtype=torch.uint8), 3", "its class is 3, classes are numbered"),
        ("torch.zeros(3, 8, 8, dtype=torch.uint8), -1", "its class is -1, classes are numbered"),
        ("torch.zeros(3, 8, 8, dtype=torch.uint8), 1.0", "its class is 1.0, classes are numbered"),
        ("None", "cannot read image 0, data set"),
    ],
)
def test_an_image_of_another_form_cannot_be_read(tmp_path: Path, item: str, why: str) -> None:
    body = f"""
    class Odd(Drawn):
        def __getitem__(self, index):
            return {item}
    return dataset(Odd(3), Odd(3))"""
    with pytest.raises(UnreadableImage) as refusal:
        _ = opened(tmp_path, body).train[0]
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("body", "why"),
    [("return 1 / 0", "ZeroDivisionError"), ("return 7", "it is of type int, needed is text")],
)
def test_a_digest_that_is_none_is_refused(tmp_path: Path, body: str, why: str) -> None:
    dataset = opened(
        tmp_path,
        f"""
    class Odd(Drawn):
        def digest(self):
            {body}
    return dataset(Odd(3), Odd(3))""",
    )
    with pytest.raises(BadInput, match=why):
        dataset.train.digest()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_image_that_fails_ends_the_training_or_is_skipped(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(tmp_path, "return dataset(Drawn(12, bad={5}), Drawn(6))")
    refused = f"cannot read image 5, data set {tmp_path / 'mine.py'}:open_mine, OSError, the disk"
    loading = ["--data.workers", workers]
    assert main([*train_command(tmp_path, "refused"), *loading]) == 1
    told = capsys.readouterr().err
    assert refused in told
    assert told.count("\n") == 1
    loading += ["--data.corrupt", "skip"]
    assert main([*train_command(tmp_path, "skipped"), *loading]) == 0
    assert f"skipped, {refused}" in capsys.readouterr().err
    assert (tmp_path / "skipped" / "weights.safetensors").exists()
