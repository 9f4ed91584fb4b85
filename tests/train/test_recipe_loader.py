"""Recipe files: what is read back equal, what wins, and what is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.trainings import SMALL, write

from nnstretch.cli import main as command
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.train import load_recipe, recipe_yaml
from nnstretch.train.recipe import (
    AugmentSettings,
    AverageSettings,
    BranchedSettings,
    DataSettings,
    LossSettings,
    OptimizerSettings,
    Recipe,
    TrainerSettings,
)
from nnstretch.train.recipe_loader import recipe_settings, setting_descriptions


@pytest.mark.slow
@given(
    st.builds(
        Recipe,
        seed=st.integers(0, 2**32 - 1),
        data=st.builds(DataSettings, image_px=st.integers(8, 1024), workers=st.integers(0, 256)),
        augment=st.builds(AugmentSettings, shift=st.floats(0, 1), mixup=st.floats(0, 100)),
        optimizer=st.builds(
            OptimizerSettings, name=st.sampled_from(["sgd", "adamw", "lamb"]), lr=st.floats(0, 1e3)
        ),
        trainer=st.builds(
            TrainerSettings, precision=st.sampled_from(["auto", "fp32", "bf16", "fp16"])
        ),
    )
)
def test_a_recipe_reads_back_equal(recipe: Recipe) -> None:
    tree = yaml.safe_load(recipe_yaml(recipe))
    kinds = {
        "data": DataSettings,
        "augment": AugmentSettings,
        "optimizer": OptimizerSettings,
        "loss": LossSettings,
        "branched": BranchedSettings,
        "average": AverageSettings,
    }
    parts = {
        name: kind(**tree[name]) for name, kind in (kinds | {"trainer": TrainerSettings}).items()
    }
    assert recipe == Recipe(tree["model"], tree["seed"], **parts)


def test_a_saved_recipe_loads_equal(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", recipe_yaml(SMALL))
    assert load_recipe(path) == SMALL


def test_overrides_win_and_the_rest_stays() -> None:
    changed = load_recipe("digits", ["--trainer.max_epochs", "2", "optimizer.lr=1e-2"])
    plain = load_recipe("digits")
    assert changed == replace(
        plain,
        trainer=replace(plain.trainer, max_epochs=2),
        optimizer=replace(plain.optimizer, lr=0.01),
    )


def test_an_empty_file_is_refused_and_no_key_is_every_default(tmp_path: Path) -> None:
    """An empty file may be what a crash left of one."""
    for text in ("", "# a recipe\n", "---\n"):
        with pytest.raises(BrokenFile, match=r"recipe .*empty\.yaml, it is empty, write \{\}"):
            load_recipe(write(tmp_path / "empty.yaml", text))
    assert load_recipe(write(tmp_path / "empty.yaml", "{}\n")) == Recipe()


@pytest.mark.parametrize(
    ("text", "error", "culprit"),
    [
        ("optimizer: {learning_rate: 1}", BadInput, "learning_rate"),
        ("speed: 1", BadInput, "speed"),
        ("optimizer: {lr: fast}", BadInput, "optimizer.lr"),
        ("seed: 1.5", BadInput, "seed"),
        ("data: 3", BadInput, "data is 3"),
        ("data:", BadInput, "key data is blank"),
        ("data: {name: imagenet}", BadInput, "data.name"),
        ("data: {image_px: 2}", BadInput, "data.image_px, 2 is out of range"),
        ("trainer: {max_epochs: 0}", BadInput, "trainer.max_epochs, 0 is out of range"),
        ("model: null", BadInput, "model, the key is left blank"),
        ("optimizer: {lr: .nan}", BadInput, "optimizer.lr, nan is not finite"),
        ("seed: 1:30", BrokenFile, "1:30 is a number to the base 60"),
        ("seed: 010", BrokenFile, "010 is a number to the base 60 or 8"),
        ("seed: 1_000", BrokenFile, "1_000 is a number to the base 60 or 8, or not in plain"),
        ("seed: true", BadInput, "seed, 'True' is bool, expected int"),
        ("optimizer: {lr: true}", BadInput, "optimizer.lr, 'True' is bool, expected float"),
        ("optimizer: {lr: .inf}", BadInput, "optimizer.lr, inf is not finite"),
        ("optimizer: {lr: 1e400}", BadInput, "optimizer.lr, inf is not finite"),
        ("optimizer: {lr: '0.1'}", BadInput, "optimizer.lr, '0.1' is str, expected float"),
        ("trainer: {max_epochs: 1%s}" % ("0" * 400), BadInput, "an integer of 1329 bits"),
        ("trainer: {max_epochs: 1%s}" % ("0" * 4400), BrokenFile, "a number of 4401 digits"),
        ("trainer: {compile: 1}", BadInput, "trainer.compile, '1' is int, expected bool"),
        ("seed: [1", BrokenFile, "is no YAML, line 1"),
        ("- a list", BrokenFile, "list"),
        ("seed: 1\nmodel: a\nseed: 2", BrokenFile, "line 3, key seed is there twice"),
        ("dta: {name: digits}", BadInput, "no such key dta.name; close to it: data.name"),
    ],
)
def test_a_bad_recipe_is_one_line_that_names_key_and_file(
    tmp_path: Path, text: str, error: type[Exception], culprit: str
) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(error) as refusal:
        load_recipe(path)
    assert culprit in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("blank", ["", " null", " ~"])
@pytest.mark.parametrize("key", [key for key, _ in recipe_settings()])
def test_a_blank_key_is_refused_by_its_dotted_name(tmp_path: Path, key: str, blank: str) -> None:
    section, dot, name = key.rpartition(".")
    text = f"{section}:\n  {name}:{blank}\n" if dot else f"{name}:{blank}\n"
    with pytest.raises(BadInput, match=rf"{key}, the key is left blank, expected "):
        load_recipe(write(tmp_path / "blank.yaml", text))


def test_a_small_number_is_read_as_people_write_it(tmp_path: Path) -> None:
    path = write(tmp_path / "small.yaml", "optimizer: {lr: 5e-2, weight_decay: 1e-4, clip_norm: 1}")
    recipe = load_recipe(path, ["--optimizer.warmup", "1e-1", "data.download=true"])
    assert (recipe.optimizer.lr, recipe.optimizer.weight_decay) == (0.05, 1e-4)
    assert (recipe.optimizer.clip_norm, recipe.optimizer.warmup) == (1.0, 0.1)
    assert recipe.data.download is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--optimizer.lr", "nan"], "optimizer.lr, 'nan' is str, expected float"),
        (["optimizer.lr=.nan"], "optimizer.lr, nan is not finite"),
        (["optimizer.lr="], "optimizer.lr, the key is left blank"),
        (["seed=null"], "seed, the key is left blank"),
        (["loss.kind="], "loss.kind, unknown kind ''"),
        (["seed=1:30"], "override seed is no YAML, line 1, 1:30 is a number to the base 60"),
        (["seed=1_0"], "1_0 is a number to the base 60 or 8, or not in plain decimals"),
        (["seed=yes"], "seed, 'True' is bool"),
        (["--seed"], "seed has no value"),
        (["--seed", "--data.workers=1"], "seed has no value"),
        (["data={name: digits}"], "no such key data"),
    ],
)
def test_an_override_is_read_as_strictly_as_the_file(words: list[str], said: str) -> None:
    with pytest.raises((BadInput, BrokenFile)) as refusal:
        load_recipe("digits", words)
    assert said in str(refusal.value)


def test_settings_made_in_python_are_checked_as_those_of_a_file() -> None:
    with pytest.raises(BadInput, match=r"optimizer\.name, unknown name 'sdg', it is one of sgd"):
        OptimizerSettings(name="sdg")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"trainer\.max_epochs, 'True' is bool, expected int"):
        TrainerSettings(max_epochs=True)
    with pytest.raises(BadInput, match=r"loss\.kind, 'None' is NoneType, expected str"):
        LossSettings(kind=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [["--trainer.epochs", "2"], ["--trainer.max_epochs", "many"], ["trainer.max_epochs=0"]]
)
def test_a_bad_override_is_refused_by_its_key(words: list[str]) -> None:
    with pytest.raises(BadInput, match=words[0].removeprefix("--").partition("=")[0]):
        load_recipe("digits", words)


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("seed: 1", ["data.name=noise"], "an override, data.name, unknown name 'noise', it is one"),
        ("seed: 1", ["data.val_resize_px=16"], "an override, data, data.val_resize_px is 16, it"),
        ("data: {batch_images: 30}", ["trainer.micro_batches=4"], "an override, trainer.micro_b"),
        ("data: {name: noise}", ["seed=1"], "recipe {path}, data.name, unknown name 'noise', it"),
        ("data: {name: noise}", ["seed=one"], "recipe {path}, data.name, unknown name 'noise', it"),
    ],
)
def test_a_bad_value_is_refused_where_it_was_written(
    tmp_path: Path, text: str, words: list[str], said: str
) -> None:
    path = write(tmp_path / "mine.yaml", text)
    with pytest.raises(BadInput) as refusal:
        load_recipe(path, words)
    assert str(refusal.value).startswith(said.format(path=path))


def test_an_override_mends_a_value_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.yaml", "data: {name: noise}")
    assert load_recipe(path, ["data.name=digits"]) == Recipe()


def test_an_unknown_recipe_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"no recipe no_such.*digits"):
        load_recipe("no_such")


def test_every_setting_has_a_dotted_key_and_a_meaning() -> None:
    assert set(setting_descriptions()) == {key for key, _ in recipe_settings()}
    assert {"seed", "data.image_px", "optimizer.lr", "loss.distill", "trainer.max_epochs"} <= {
        key for key, _ in recipe_settings()
    }


@pytest.mark.slow
@pytest.mark.parametrize("text", ["[" * 3000, "seed: " + "9" * 5000], ids=["deep", "long"])
def test_a_hostile_recipe_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrokenFile, match=r"bad\.yaml (is no YAML|holds a value that YAML)"):
        load_recipe(write(tmp_path / "bad.yaml", text))


def test_print_config_shows_the_resolved_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        command(
            ["train", "digits", "--print_config", "--trainer.max_epochs", "2", "--data.image_px=32"]
        )
        == 0
    )
    path = write(tmp_path / "printed.yaml", capsys.readouterr().out)
    assert load_recipe(path) == load_recipe("digits", ["trainer.max_epochs=2", "data.image_px=32"])


def test_the_verb_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", "digits", "--optimizer.lr", "fast", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nnstretch: an override, optimizer.lr, ")
    assert captured.err.count("\n") == 1
