"""`nnstretch export --int8 --single`.

Calibration images, what is written, and what is refused in one line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.small_plan import write_plan_of_small_net

pytest.importorskip("litert_torch")
pytest.importorskip("ai_edge_quantizer")

from nnstretch.bundle.bundle import read_bundle
from nnstretch.bundle.image_task import ImageTask
from nnstretch.capture import load_model
from nnstretch.cli import parser_of, run_verb
from nnstretch.cli.export import export as verb
from nnstretch.errors import BadInput, UnknownName
from nnstretch.export.single_file import format_of
from nnstretch.stretch import read_plan, stretch
from nnstretch.stretch.weights.weights_file import save_weights
from nnstretch.train.data.calibration import open_calibration
from nnstretch.train.data.dataset import IMAGENET_MEAN, IMAGENET_STD
from nnstretch.train.data.decode import encode_png


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a plan of it, and a folder of photographs."""
    folder = tmp_path_factory.mktemp("export")
    write_plan_of_small_net(folder)
    for number in range(3):
        inside = folder / "photos" / f"class{number % 2}"
        inside.mkdir(parents=True, exist_ok=True)
        picture = torch.full((3, 20, 40), 10 * number, dtype=torch.uint8)
        picture[:, 2:18, 12:28] = 50 * (1 + number)
        (inside / f"{number}.PNG").write_bytes(encode_png(picture))
    (folder / "photos" / "notes.txt").write_text("no image")
    return folder


def test_photographs_are_cropped_and_normalised(place: Path) -> None:
    found = open_calibration(str(place / "photos"), 64, (1, 3, 16, 16))
    tensors = list(found)
    assert [tuple(x.shape) for x in tensors] == [(1, 3, 16, 16)] * 3
    mean, std = (
        torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1),
        torch.tensor(IMAGENET_STD).view(1, 3, 1, 1),
    )
    centres = sorted(round(float((x * std + mean)[0, 0, 8, 8]) * 255) for x in tensors)
    assert centres == [50, 100, 150]
    assert [x.tolist() for x in found] == [x.tolist() for x in tensors], (
        "they are read anew, and are the same"
    )


def test_photographs_are_seen_as_the_weights_say(place: Path) -> None:
    task = ImageTask(("a", "b"), (0.5, 0.25, 0.0), (0.5, 1.0, 2.0), resize_px=20)
    x = next(iter(open_calibration(str(place / "photos"), 1, (1, 3, 16, 16), task=task)))
    colors = x[0, :, 8, 8] * torch.tensor(task.std) + torch.tensor(task.mean)
    assert len({round(float(color) * 255) for color in colors}) == 1
    assert round(float(colors[0]) * 255) in (50, 100, 150)
    # The square of 16 px is all that is cropped out of 20: nothing is resized, edges are sharp.
    assert x[0, 0].unique().numel() == 1


def test_a_batch_of_images_is_one_input_and_the_draw_depends_on_the_seed(place: Path) -> None:
    assert [tuple(x.shape) for x in open_calibration(str(place / "photos"), 3, (2, 3, 16, 16))] == [
        (2, 3, 16, 16)
    ]
    drawn = open_calibration("digits", 10, (1, 3, 16, 16))
    assert len(drawn.indices) == len(set(drawn.indices)) == 10
    assert drawn.indices == open_calibration("digits", 10, (1, 3, 16, 16)).indices
    assert {tuple(x.shape) for x in drawn} == {(1, 3, 16, 16)}


@pytest.mark.parametrize(
    ("what", "images", "shape", "why"),
    [
        ("photos", 0, (1, 3, 16, 16), r"^--calibration-images is 0, command line, "),
        (
            "photos",
            9,
            (1, 3, 16, 20),
            (
                r"^the network takes 1x3x16x20, --calibration .*, images are read only for square"
                r" inputs of 3"
            ),
        ),
        (
            "photos",
            9,
            (4, 3, 16, 16),
            r"^3 images, --calibration .*, one input of the network takes 4$",
        ),
        ("", 9, (1, 3, 16, 16), None),
    ],
)
def test_images_that_cannot_serve_are_refused(
    place: Path, tmp_path: Path, what: str, images: int, shape: tuple[int, ...], why: str
) -> None:
    folder = place / what if what else tmp_path
    with pytest.raises(
        BadInput, match=why or r"^no images, --calibration .*, needed are files that end in "
    ):
        open_calibration(str(folder), images, shape)


def test_neither_a_folder_nor_a_recipe_is_unknown() -> None:
    with pytest.raises(UnknownName, match=r"^no recipe nowhere, "):
        open_calibration("nowhere", 4, (1, 3, 16, 16))


@pytest.mark.slow
def test_the_verb_writes_an_int8_bundle_and_a_single_file(place: Path) -> None:
    out, single = place / "net.nns", place / "net.tflite"
    argv = [
        str(place / "plan.yaml"),
        "--format",
        "litert",
        "--int8",
        "--calibration",
        "digits",
        "--calibration-images",
        "24",
    ]
    result = verb.main(
        parser_of("export").parse_args([*argv, "--out", str(out), "--single", str(single)])
    )
    assert json.loads(json.dumps(result)) == result
    assert (result["bundle"], result["format"], result["int8"], result["calibration_images"]) == (
        str(out),
        "litert",
        True,
        24,
    )
    assert result["int8_snr_db"] > 10
    assert result["single"]["file"] == str(single)
    assert result["single"]["size_bytes"] == single.stat().st_size
    assert {s["file"] for s in result["subgraphs"]} == set(read_bundle(out).files)


def test_int8_is_not_judged_on_other_classes_than_the_weights_were_trained_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, weights = place / "plan.yaml", place / "shapes.safetensors"
    network = stretch(load_model(f"{place}/net.py:make"), read_plan(plan))
    save_weights(network, weights, ImageTask(("disc", "square"), (0.5,) * 3, (0.5,) * 3))
    argv = [str(plan), "--weights", str(weights), "--out", str(place / "int8.nns")]
    argv += ["--format", "litert", "--int8", "--calibration", "digits"]
    assert run_verb("export", argv) == 1
    assert capsys.readouterr().err.startswith(
        f"nnstretch: {weights} was trained for other classes than the data set has, "
    )


@pytest.mark.slow
def test_a_plan_without_trained_weights_says_so(place: Path) -> None:
    plan, out = place / "plan.yaml", place / "untrained.nns"
    parse = parser_of("export").parse_args
    notes = verb.main(parse([str(plan), "--out", str(out)]))["notes"]
    assert notes[-1].startswith("without --weights the branches have what the network starts with")
    whole = verb.main(parse(["timm:test_vit", "--out", str(place / "whole.nns")]))
    assert not any("without --weights" in note for note in whole["notes"])


@pytest.mark.slow
def test_a_network_is_exported_at_the_size_on_which_its_weights_were_judged(place: Path) -> None:
    model, weights, out = f"{place}/pooled.py:make", place / "judged.safetensors", place / "n.nns"
    layers = "nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)"
    text = f"from torch import nn\n\n\ndef make():\n    return nn.Sequential({layers})\n"
    (place / "pooled.py").write_text(text)
    task = ImageTask(("disc", "square"), (0.5,) * 3, (0.5,) * 3, crop_px=48)
    save_weights(load_model(model), weights, task)
    parse = parser_of("export").parse_args
    argv = [model, "--weights", str(weights), "--out", str(out)]
    assert verb.main(parse(argv))["notes"] == []
    manifest = read_bundle(out).manifest
    assert manifest.inputs[0].spec.shape == (1, 3, 48, 48)
    assert manifest.image_task == task
    notes = verb.main(parse([*argv, "--input", "1,3,64,64"]))["notes"]
    assert notes == [
        "the weights were judged on images of 48 px, here 1x3x64x64 goes in: their accuracy is not"
        " the one that was measured"
    ]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ([], "nothing to write, command line, give --out FILE.nns or --single FILE"),
        (
            ["--out", "a.nns", "--int8"],
            "--int8 with --format onnx, command line, only --format litert has it",
        ),
        (
            ["--out", "a.nns", "--int8", "--format", "litert"],
            "--int8 without --calibration, command line, ranges of activations are measured",
        ),
        (
            ["--single", "a.pb"],
            "cannot write a.pb, a network in one file, its name must end in .onnx or .tflite",
        ),
        (
            ["--out", "a.onnx"],
            "--out is a.onnx, command line, a bundle goes there: name a FILE.nns, or take --single",
        ),
        (
            ["--out", "a.TFLITE", "--single", "b.tflite", "--format", "litert"],
            "--out is a.TFLITE, command line, a bundle goes there",
        ),
        (
            ["--single", "a.onnx", "--int8", "--format", "litert"],
            "--int8 with --single a.onnx, command line, only a .tflite can be int8",
        ),
        (
            ["--out", "a.nns", "--calibration", "digits"],
            "--calibration digits without --int8, command line, float needs no calibration",
        ),
        (
            ["--single", "a.onnx", "--format", "litert"],
            "--format litert with --single a.onnx, command line, its name says what the file is",
        ),
        (["--out", "a.nns", "--max-drop", "3"], "--max-drop 3.0 without --int8, command line"),
        (
            [
                "--out",
                "a.nns",
                "--format",
                "litert",
                "--int8",
                "--calibration",
                ".",
                "--max-drop",
                "3",
            ],
            "--max-drop 3 with --calibration ., command line, a folder has no labels, --min-snr",
        ),
        (["--out", "a.nns", "--min-snr", "9"], "--min-snr 9.0 without --int8, command line"),
        (
            ["--out", "a.nns", "--calibration-images", "9"],
            "--calibration-images 9 without --int8, command line",
        ),
        (
            [
                *("--out", "a.nns", "--format", "litert", "--int8", "--calibration", "."),
                "--calibration-images=0",
            ],
            "--calibration-images is 0, command line, at least 1 image is needed",
        ),
        (
            ["--out", "a.onnx", "--single", "./a.onnx"],
            "--single is ./a.onnx, command line, it is --out, too",
        ),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], why: str
) -> None:
    assert run_verb("export", ["plan.yaml", *argv]) == 1
    assert capsys.readouterr().err.startswith(f"nnstretch: {why}")


def test_a_link_to_itself_is_no_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    argv = ["absent.yaml", "--out", str(tmp_path / "loop"), "--single", str(tmp_path / "q.onnx")]
    assert run_verb("export", argv) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_files_name_says_its_format() -> None:
    assert (format_of("a/b.onnx"), format_of(Path("b.tflite"))) == ("onnx", "litert")
