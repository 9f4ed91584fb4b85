"""Data sets from folders of images: what they hold, and what they refuse."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from PIL import Image
from support.image_folders import in_bytes, names, one_line, refusal
from support.trainings import picture, write_images

from nnstretch.cli import main
from nnstretch.errors import BadInput
from nnstretch.train.data.dataset import UnreadableImage
from nnstretch.train.data.decode import decode_image, encode_png
from nnstretch.train.data.image_folder import ImageFiles, open_folder


def test_an_image_file_becomes_its_pixels(tmp_path: Path) -> None:
    dataset = open_folder(write_images(tmp_path / "set", {"cat": 4, "dog": 4}), 0.25, 0)
    assert dataset.classes == ("cat", "dog")
    for images in (dataset.train, dataset.held):
        for index in range(len(images)):
            image, label = images[index]
            path = images.file_path(index)  # type: ignore[attr-defined]
            assert dataset.classes[label] == path.parent.name
            assert image.dtype == torch.uint8
            assert torch.equal(image, torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1))


@settings_of_hypothesis(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=2, max_size=4), st.floats(0.01, 0.99), st.integers(0, 99)
)
def test_every_class_is_split_in_its_share_and_always_alike(
    tmp_path_factory: Any, counts: list[int], share: float, seed: int
) -> None:
    root = tmp_path_factory.mktemp("split")
    for label, count in enumerate(counts):
        (root / f"c{label}").mkdir()
        for k in range(count):
            (root / f"c{label}" / f"{k}.png").touch()
    dataset, again = (open_folder(root, share, seed) for _ in range(2))
    assert names(dataset.train).isdisjoint(names(dataset.held))
    assert names(dataset.held) == names(again.held)
    kept, held = (Counter(images.labels.tolist()) for images in (dataset.train, dataset.held))  # type: ignore[attr-defined]
    for label, count in enumerate(counts):
        assert kept[label] + held[label] == count
        assert min(kept[label], held[label]) >= 1
        assert abs(held[label] - share * count) <= 1


def test_another_seed_holds_out_others_and_a_new_file_moves_few(tmp_path: Path) -> None:
    root = write_images(tmp_path / "set", {"cat": 40, "dog": 40})
    before = names(open_folder(root, 0.25, 0).held)
    assert before != names(open_folder(root, 0.25, 1).held)
    picture(7).save(root / "cat" / "new.png")
    assert len(before - names(open_folder(root, 0.25, 0).held)) <= 1


@pytest.mark.parametrize("held", ["val", "valid", "validation", "test"])
def test_imagenets_layout_is_taken_as_it_is_split(tmp_path: Path, held: str) -> None:
    write_images(tmp_path / "train", {"cat": 3, "dog": 2})
    write_images(tmp_path / held, {"cat": 1, "dog": 1})
    dataset = open_folder(tmp_path, 0.5, 0)
    assert (len(dataset.train), len(dataset.held)) == (5, 2)


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    assert open_folder(write_images(tmp_path / "set", {"bus": 2, "train": 2}), 0.5, 0).classes == (
        "bus",
        "train",
    )


def test_refused_folders_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"no image folder, {tmp_path / 'none'}, nothing is there"
    (tmp_path / "empty").mkdir()
    assert "no class folders" in refusal(tmp_path / "empty")
    one = write_images(tmp_path / "one", {"cat": 2})
    assert "only one class (cat)" in refusal(one)
    (one / "dog").mkdir()
    (one / "dog" / "notes.txt").touch()
    assert f"class dog has no images, {one / 'dog'}, needed is at least one file named" in refusal(
        one
    )
    picture(0).save(one / "dog" / "0.png")
    assert "class dog has 1 image" in refusal(one)
    assert "held_out is 1.0" in refusal(one, 1.0)
    write_images(tmp_path / "half" / "train", {"cat": 2, "dog": 2})
    assert "beside train needed is one of val" in refusal(tmp_path / "half")
    half = tmp_path / "half"
    write_images(half / "dev", {"cat": 2, "dog": 2})
    write_images(half, {".ipynb_checkpoints": 1})
    assert refusal(half) == (
        f"images to be judged by are missing, {half / 'dev'} is not called so, beside train needed"
        " is one of val, valid, validation, test"
    )
    write_images(half / "val", {"cat": 2, "cow": 2})
    assert f"class cow is in {half / 'val'} but not in {half / 'train'}" in refusal(half)


def test_hidden_folders_and_files_are_no_classes_and_no_images(tmp_path: Path) -> None:
    root = write_images(tmp_path / ".photos", {"cat": 2, "dog": 2, ".ipynb_checkpoints": 2})
    write_images(root / "cat", {".ipynb_checkpoints": 2})
    (root / "dog" / "._0.png").write_bytes(b"notes of a file manager")
    picture(0).save(root / "dog" / "moving.gif")
    dataset = open_folder(root, 0.5, 0)
    assert dataset.classes == ("cat", "dog")
    assert len(dataset.train) + len(dataset.held) == 5
    assert "no class folders" in refusal(write_images(tmp_path / "only", {".cache": 2}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"%!PS-Adobe-3.0 EPSF-3.0\n",
    ],
)
@pytest.mark.parametrize("name", ["0.png", "1.jpg"])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path, damage: Any, name: str) -> None:
    root = write_images(tmp_path / "set", {"cat": 9, "dog": 9})
    path = root / "cat" / name
    path.write_bytes(damage(path.read_bytes()))
    images = open_folder(root, 0.1, 3).train
    assert isinstance(images, ImageFiles)
    index = [images.file_path(index) for index in range(len(images))].index(path)
    with pytest.raises(UnreadableImage, match=str(path)) as caught:
        images[index]
    assert "\n" not in str(caught.value)
    assert images[index + 1][0].shape == (3, 8, 10)


def test_an_image_that_vanished_is_named(tmp_path: Path) -> None:
    images = open_folder(write_images(tmp_path / "set", {"cat": 2, "dog": 2}), 0.5, 0).train
    images.file_path(0).unlink()  # type: ignore[attr-defined]
    with pytest.raises(UnreadableImage, match="the file does not exist"):
        images[0]


@settings_of_hypothesis(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_bytes_give_an_image_or_one_line(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]))
    file = bytearray(in_bytes(picture(0), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    with one_line(", here, "):
        image = decode_image(bytes(file), "here")
        assert image.dtype == torch.uint8
        assert image.shape[0] == 3


def test_other_kinds_of_image_become_colour_of_eight_bits() -> None:
    grey = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    deep = decode_image(in_bytes(Image.fromarray(grey), "PNG"), "deep")
    assert torch.equal(deep[1], torch.from_numpy((grey // 256).astype(np.uint8)))
    for mode in ("1", "L", "LA", "P", "RGBA"):
        assert decode_image(in_bytes(picture(0).convert(mode), "PNG"), mode).shape == (3, 8, 10)
    red = Image.new("RGB", (16, 16), (250, 10, 10)).convert("CMYK")
    assert (
        decode_image(in_bytes(red, "JPEG"), "cmyk").float().mean((1, 2))
        - torch.tensor([250.0, 10, 10])
    ).abs().max() < 8


def test_a_photograph_is_turned_upright() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    plain, upright = (
        decode_image(in_bytes(picture(0), "PNG", exif=exif), "photo")
        for exif in (Image.Exif(), turned)
    )
    assert torch.equal(upright, plain.rot90(-1, (1, 2)))


@pytest.mark.parametrize(
    ("side_px", "told"), [(9_000, "image of 9000x9000 pixels, bomb, the limit"), (60_000, "Bomb")]
)
def test_an_image_too_large_is_refused_before_it_is_decoded(side_px: int, told: str) -> None:
    file = bytearray(in_bytes(picture(0), "PNG"))
    file[16:24] = struct.pack(">II", side_px, side_px)
    file[29:33] = struct.pack(">I", zlib.crc32(file[12:29]))
    with pytest.raises(UnreadableImage, match=told):
        decode_image(bytes(file), "bomb")


@settings_of_hypothesis(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_png_keeps_every_byte(height: int, width: int, seed: int) -> None:
    image = torch.randint(
        0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    assert torch.equal(decode_image(encode_png(image), "here"), image)


@pytest.mark.parametrize("target", ["..", "../bee", "../.."])
def test_a_link_that_would_list_images_twice_is_refused(tmp_path: Path, target: str) -> None:
    write_images(tmp_path / "images", {"ant": 3, "bee": 3})
    (tmp_path / "images" / "ant" / "more").symlink_to(target)
    with pytest.raises(
        BadInput,
        match=r"images would be there twice, .* is a link to the same folder, remove the link",
    ):
        open_folder(tmp_path / "images", 0.3, 0)


@pytest.mark.parametrize("link", ["val", "val/cat"])
def test_held_out_images_that_are_training_images_are_refused(tmp_path: Path, link: str) -> None:
    write_images(tmp_path / "train", {"ant": 3, "cat": 3})
    if link == "val/cat":
        write_images(tmp_path / "val", {"ant": 3})
    (tmp_path / link).symlink_to(tmp_path / "train" / link.removeprefix("val").strip("/"))
    with pytest.raises(
        BadInput,
        match=r"images would be there twice, .* is a link to the same folder, remove the link",
    ):
        open_folder(tmp_path, 0.3, 0)


def test_a_file_name_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "images", {"ant": 3, "bee": 3})
    for k in range(3):
        (tmp_path / "images" / "ant" / f"\x1b[2J\n{k}.png").write_bytes(b"no image")
    words = [
        "--data.name",
        "folder",
        "--data.root",
        str(tmp_path / "images"),
        "--data.batch_images",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["train", "digits", "--model", "torchvision:resnet18?num_classes=2", *words]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert r"\x1b[2J" in line
    assert "\x1b" not in line
