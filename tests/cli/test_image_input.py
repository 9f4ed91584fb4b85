"""Labels and colors travel from weights to bundles, and a photograph can be fed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from PIL import Image
from support.bundles import branched_bundle, model_bytes, subgraph

from nnstretch.bundle.bundle import Bundle, read_bundle, write_bundle
from nnstretch.bundle.image_task import ImageTask, read_task, task_text
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.cli import main
from nnstretch.cli.run.image_input import best_classes, read_image, read_input, square_side
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.graph import TensorSpec

TASK = ImageTask(("red", "green", "blue"), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.fixture
def colors(tmp_path: Path) -> Path:
    """A bundle whose scores are the mean of each color."""
    x, y = Port("x", TensorSpec((1, 3, 16, 16)), "NCHW"), Port("y", TensorSpec((1, 3)))
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["means"]),
        helper.make_node("Flatten", ["means"], ["y"]),
    ]
    data = model_bytes(nodes, [x], [y], {})
    sub = subgraph("s", "cpu", data, [x], [y])
    manifest = Manifest("colors", None, (x,), (y,), (sub,), 0.0, image_task=TASK)
    write_bundle(tmp_path / "net.nns", manifest, {"s.onnx": data})
    return tmp_path / "net.nns"


def test_a_bundle_keeps_its_task(colors: Path) -> None:
    assert read_bundle(colors).manifest.image_task == TASK


@pytest.mark.parametrize(("color", "label"), [((250, 9, 9), "red"), ((0, 40, 200), "blue")])
def test_a_photograph_is_classified(
    colors: Path, capsys: pytest.CaptureFixture[str], color: tuple[int, int, int], label: str
) -> None:
    photo = colors.with_name("photo.jpg")
    Image.new("RGB", (60, 40), color).save(photo)
    assert main(["run", str(colors), "--input", str(photo), "--repeat", "1", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best[0]["label"] == label
    assert best[0]["score"] == pytest.approx((max(color) / 255 - 0.5) / 0.25, abs=0.05)
    assert main(["run", str(colors), "--input", str(photo), "--repeat", "1"]) == 0
    assert f"  {label}\n" in capsys.readouterr().out


def test_an_image_is_resized_by_its_shorter_side_and_cropped(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, 10:30, 1] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    seen = read_image(tmp_path / "a.png", replace(TASK, mean=(0, 0, 0), std=(1, 1, 1)), 10)
    assert (seen.shape, seen.dtype) == ((1, 3, 10, 10), np.float32)
    assert seen[0, 1, :, 1:9].min() > 0.99
    assert seen[0, ::2].max() == 0
    wide = read_image(tmp_path / "a.png", replace(TASK, resize_px=20), 10)
    assert wide.shape == (1, 3, 10, 10)


@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
@pytest.mark.parametrize(
    "size", [(90, 120), (120, 90), (61, 61), (47, 100), (333, 250), (32, 35), (20, 31), (33, 32)]
)
@pytest.mark.parametrize("resize_px", [0, 37])
def test_an_image_is_seen_as_training_sees_it(
    tmp_path: Path, size: tuple[int, int], mode: str, resize_px: int
) -> None:
    pytest.importorskip("torchvision")
    from nnstretch.train.data.decode import decode_image
    from nnstretch.train.data.transforms import ResizeAndCrop

    drawn = np.random.default_rng(0).integers(0, 65536, (size[1], size[0], 3), np.uint16)
    pixels = {"RGB": drawn >> 8, "L": drawn[..., 0] >> 8, "I;16": drawn[..., 0]}[mode]
    path = tmp_path / "a.png"
    Image.fromarray(pixels if mode == "I;16" else pixels.astype(np.uint8)).save(path)
    task = replace(TASK, mean=(0, 0, 0), std=(1, 1, 1), resize_px=resize_px)
    trained = ResizeAndCrop(resize_px or 32, 32)(decode_image(path.read_bytes(), "a.png")).numpy()
    seen = 255 * read_image(path, task, 32)[0]
    assert np.abs(seen - trained).max() < 1.5


def test_an_image_too_thin_to_be_resized_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (100_000, 1)).save(tmp_path / "thin.png")
    with pytest.raises(BadInput, match=r"100000x1 pixels, .*, a side of 256 would make them"):
        read_image(tmp_path / "thin.png", replace(TASK, resize_px=256), 224)


def test_what_is_no_image_or_cannot_be_seen_is_refused(
    tmp_path: Path, colors: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no image")
    assert main(["run", str(colors), "--input", str(tmp_path / "a.jpg")]) == 1
    assert "not a readable image" in capsys.readouterr().err
    plain: Bundle = branched_bundle()
    write_bundle(tmp_path / "plain.nns", plain.manifest, plain.files)
    assert main(["run", str(tmp_path / "plain.nns"), "--input", str(tmp_path / "a.jpg")]) == 1
    assert "its bundle does not say how it sees images" in capsys.readouterr().err
    assert square_side(Port("x", TensorSpec((1, 8, 8, 3)), "NHWC")) == 8
    assert square_side(Port("x", TensorSpec((1, 8, 8, 3)), "NCHW")) is None
    assert best_classes(np.zeros((1, 7)), TASK) == []


@pytest.mark.parametrize("task", [TASK, None])
@pytest.mark.parametrize(
    ("ports", "takes"),
    [
        ([Port("x", TensorSpec((1, 3, 48, 96)), "NCHW")], "1x3x48x96"),
        ([Port("x", TensorSpec((1, 48, 96, 3)), "NHWC")], "1x48x96x3"),
        ([Port("x", TensorSpec((2, 3, 16, 16)), "NCHW")], "2x3x16x16"),
        ([Port("x", TensorSpec((1, 1, 16, 16)), "NCHW")], "1x1x16x16"),
        ([Port(name, TensorSpec((1, 3, 8, 8))) for name in "xy"], "1x3x8x8 and 1x3x8x8"),
    ],
)
def test_what_a_network_takes_that_is_no_photograph_is_named(
    ports: list[Port], takes: str, task: ImageTask | None
) -> None:
    manifest = Manifest("net", None, tuple(ports), (), (), 0.0, image_task=task)
    with pytest.raises(
        BadInput, match=f"cannot feed a.jpg, net takes {takes}, .* one square image of 3 channels"
    ):
        read_input(Path("a.jpg"), manifest)


def test_weights_say_how_they_see_images(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from nnstretch.stretch.weights.weights_file import load_weights, read_image_task, save_weights

    path = tmp_path / "w.safetensors"
    module = torch.nn.Linear(2, 3)
    save_weights(module, path, TASK)
    assert read_image_task(path) == TASK
    load_weights(module, path)
    save_weights(module, path)
    assert read_image_task(path) is None
    save_file({"a": torch.zeros(1)}, path, {"image_task": '{"classes": 3}'})
    with pytest.raises(BrokenFile, match="image task"):
        read_image_task(path)


@pytest.mark.parametrize(
    "change", [{"std": [0, 1, 1]}, {"mean": [0, 0]}, {"resize_px": -1}, {"more": 1}]
)
def test_a_task_that_means_nothing_is_refused(change: dict[str, object]) -> None:
    assert read_task(task_text(TASK)) == TASK
    with pytest.raises(ValueError, match="image task"):
        read_task(json.dumps(json.loads(task_text(TASK)) | change))


def test_the_shorter_side_keeps_its_proportion_to_the_crop() -> None:
    judged = ImageTask((), TASK.mean, TASK.std, 256, 224)
    assert read_task(task_text(judged)) == judged
    assert [judged.short_px(side_px) for side_px in (112, 224, 288)] == [128, 256, 329]
    assert replace(judged, resize_px=0).short_px(288) == 288
    older = replace(judged, crop_px=0)
    assert "crop_px" not in task_text(older)
    assert older.short_px(256) == 256
    with pytest.raises(BadInput, match="a crop of 257 px is larger than the image"):
        older.short_px(257)


@pytest.mark.parametrize("kind", ["gif", "tiff", "ppm"])
def test_images_of_every_kind_that_trains_are_read(tmp_path: Path, kind: str) -> None:
    pixels = np.full((20, 30, 3), 51, np.uint8)
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(pixels).save(tmp_path / f"a.{kind}")
    port = Port("x", TensorSpec((1, 3, 16, 16)), "NCHW")
    plain = ImageTask((), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    manifest = Manifest("net", None, (port,), (), (), 0.0, image_task=plain)
    seen = read_input(tmp_path / f"a.{kind}", manifest)
    np.testing.assert_allclose(seen, np.full((1, 3, 16, 16), 0.2), atol=1e-6)


@pytest.mark.slow
def test_training_writes_how_the_network_sees_images(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("pytorch_lightning")
    from nnstretch.stretch.weights.weights_file import read_image_task
    from nnstretch.train import fit, load_recipe

    settings = ["trainer.max_epochs=1", "data.image_px=16", "trainer.tensorboard=false"]
    layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    fit(
        torch.nn.Sequential(*layers, torch.nn.Linear(8, 10)),
        load_recipe("digits", settings),
        tmp_path,
    )
    for name in ("weights", "best"):
        task = read_image_task(tmp_path / f"{name}.safetensors")
        assert task is not None
        assert task.classes == tuple("0123456789")
        assert (task.crop_px, task.resize_px) == (16, 0)
        assert 0.2 < task.mean[0] < 0.4
