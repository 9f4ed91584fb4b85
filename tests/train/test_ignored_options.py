"""Options of `train` that would be passed over: given twice, or without effect beside others."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.trainings import FACTORY, net, write

from nnstretch.cli import main as command
from nnstretch.stretch.weights.weights_file import save_weights
from nnstretch.train.training_folder import origin_comments, read_origin

QUICK = ["--data.image_px", "16", "--trainer.threads", "1", "--json"]


def refused(words: list[str], capsys: pytest.CaptureFixture[str], status: int = 1) -> str:
    """Return the last line that a refused command printed."""
    capsys.readouterr()
    try:
        code = command(words)
    except SystemExit as usage:
        code = usage.code  # type: ignore[assignment]
    assert code == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 or status == 2
    return lines[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trainer.max_epochs 1 --trainer.max_epochs 2", "--trainer.max_epochs: it is given twi"),
        ("--seed=1 --seed 1", "argument --seed: it is given twice, give it once"),
        ("--weights a --weights b", "argument --weights: it is given twice"),
        ("--out a --out=b", "argument --out: it is given twice"),
        ("--resume --overwrite", "argument --overwrite: not allowed with argument --resume"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["train", "no_recipe", *words.split()], capsys, status=2)
    assert said in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--start he --weights w.safetensors", "--start he would not be used, --weights w.safet"),
        ("--optimizer.name adamw --optimizer.momentum 0.5", "--optimizer.momentum 0.5 would not"),
        ("--branched.inherit none", "--branched.inherit none would not be used, the network has"),
        ("--branched.calibration_images 8", "--branched.calibration_images 8 would not be used"),
    ],
)
def test_a_key_without_effect_is_refused(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert said in refused(["train", "digits", *words.split(), "--out", str(out)], capsys)
    assert not out.exists()


def test_keys_of_a_recipes_file_may_be_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(tmp_path / "r.yaml", "start: he\noptimizer: {name: adamw, momentum: 0.5}\n")
    words = ["train", str(recipe), "--weights", str(tmp_path / "w"), "--out", str(tmp_path / "o")]
    assert "would not be used" not in refused(words, capsys)


@pytest.mark.slow
def test_a_training_does_not_go_on_with_weights_it_did_not_begin_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = f"{write(tmp_path / 'net.py', FACTORY)}:make", tmp_path / "out"
    kept, same, unlike = (tmp_path / f"{name}.safetensors" for name in ("kept", "same", "unlike"))
    for seed, path in ((1, kept), (1, same), (2, unlike)):
        save_weights(net(seed), path)
    words = ["train", "digits", "--model", model, *QUICK, "--out", str(out)]
    assert command([*words, "--trainer.max_epochs", "1", "--weights", str(kept)]) == 0
    longer = [*words, "--trainer.max_epochs", "2", "--resume"]
    line = refused([*longer, "--weights", str(unlike)], capsys)
    assert (
        f"cannot resume {out}, --weights {unlike} would not be used, it began with {kept}" in line
    )
    assert command([*longer, "--weights", str(same)]) == 0
    assert command(longer) == 0
    words[-1] = str(tmp_path / "drawn")
    assert command([*words, "--trainer.max_epochs", "1"]) == 0
    longer = [*words, "--trainer.max_epochs", "2", "--resume"]
    assert "it began without --weights" in refused([*longer, "--weights", str(kept)], capsys)


def test_the_origin_of_a_training_is_read_as_it_was_written(tmp_path: Path) -> None:
    origin = {"weights": "a: b\n, sha256 12", "plan": "p"}
    text = f"# mine: 3\n#\n# a comment\n{origin_comments(origin)}seed: 1\n"
    assert read_origin(write(tmp_path / "recipe.yaml", text)) == origin
