"""What a folder of a training that ended, or was killed, allows."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from support.stopped_training import Stopped, stop_in_epoch
from support.trainings import SMALL, branched_plan, small_net

from nnstretch.capture import load_model
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.stretch import read_plan, stretch
from nnstretch.train import callbacks as records
from nnstretch.train import fit, load_recipe
from nnstretch.train.checkpoints import (
    SafeCheckpoint,
)
from nnstretch.train.classifier import Classifier
from nnstretch.train.training_folder import result_times


def test_a_training_goes_on_with_the_plan_it_began_with(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    plans = [branched_plan(tmp_path, processors) for processors in (("cpu", "dsp"), ("cpu", "gpu"))]
    networks = [stretch(load_model(plan.model), plan) for plan in plans]
    fit(networks[0], recipe, tmp_path / "out", progress=False, origin={"plan": "a\nseed: 3"})
    assert read_plan(tmp_path / "out" / "plan.yaml") == plans[0]
    assert (tmp_path / "out" / "recipe.yaml").read_text().startswith('# plan: "a\\nseed: 3"\n')
    fit(networks[0], recipe, tmp_path / "out", resume=True, progress=False)
    with pytest.raises(BadInput, match=r"the plan is another than .*plan\.yaml"):
        fit(networks[1], recipe, tmp_path / "out", resume=True, progress=False)


def test_an_interrupted_training_is_not_begun_anew_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=1))
        with pytest.raises(Stopped):
            fit(small_net(), SMALL, tmp_path, progress=False)
    with pytest.raises(BadInput, match="holds an interrupted training, --resume goes on with it"):
        fit(small_net(), SMALL, tmp_path, progress=False)
    assert fit(small_net(), SMALL, tmp_path, resume=True, progress=False).epochs == 2
    assert fit(small_net(), SMALL, tmp_path, progress=False).epochs == 2


def test_a_finished_training_that_goes_on_is_not_begun_anew_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fit(
        small_net(),
        replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1)),
        tmp_path,
        progress=False,
    )
    weights = first.checkpoint.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "training_step", stop_in_epoch(Classifier.training_step, epoch=1))
        with pytest.raises(Stopped):
            fit(small_net(), SMALL, tmp_path, resume=True, progress=False)
    with pytest.raises(BadInput, match="holds an interrupted training, --resume goes on with it"):
        fit(small_net(), SMALL, tmp_path, progress=False)
    assert first.checkpoint.read_bytes() == weights
    assert fit(small_net(), SMALL, tmp_path, resume=True, progress=False).epochs == 2


@pytest.mark.slow
def test_what_a_kill_left_half_written_goes_and_nothing_goes_before_training_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(small_net(), SMALL, tmp_path, progress=False)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("nnstretch.train.trainer.train", lambda *_: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            fit(small_net(), SMALL, tmp_path, progress=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for name in (
        ".resume.safetensors.x1y2z3.unfinished",
        ".recipe.yaml.x1y2z3.unfinished",
        ".plan.yaml.swp",
    ):
        (tmp_path / name).write_bytes(b"half")
    fit(small_net(), SMALL, tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [
        ".plan.yaml.swp"
    ]  # somebody's editor's


@pytest.mark.parametrize(
    "failing", [(SafeCheckpoint, "save_checkpoint"), (records, "save_weights")]
)
def test_of_a_save_that_fails_neither_state_nor_best_weights_are_in_place(
    failing: tuple[object, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best weights ahead of their state would be another epoch's than a resumed training says."""
    once = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), once, tmp_path, progress=False)
    names = ("best.safetensors", "resume.safetensors")
    before = [(tmp_path / name).read_bytes() for name in names]

    def no_room(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*failing, no_room)
        with pytest.raises(BadInput, match=r"cannot write .*resume.safetensors, No space left"):
            fit(small_net(), SMALL, tmp_path, resume=True, progress=False)
    assert [(tmp_path / name).read_bytes() for name in names] == before
    assert not list(tmp_path.glob(".*"))
    fit(small_net(), SMALL, tmp_path, resume=True, progress=False)
    assert (tmp_path / "best.safetensors").read_bytes() != before[0]


def test_a_recipe_keeps_saying_what_its_training_began_with(tmp_path: Path) -> None:
    one = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), one, tmp_path, progress=False, origin={"weights": "w.safetensors"})
    fit(small_net(), SMALL, tmp_path, resume=True, progress=False, origin={})
    assert (tmp_path / "recipe.yaml").read_text().startswith('# weights: "w.safetensors"\n')
    assert load_recipe(tmp_path / "recipe.yaml").trainer.max_epochs == 2


@pytest.mark.parametrize(
    "key", ["optimizer_states", "callbacks", "loops", "pytorch-lightning_version"]
)
def test_a_state_that_lacks_a_part_is_refused(tmp_path: Path, key: str) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), recipe, tmp_path, progress=False)
    state = SafeCheckpoint().load_checkpoint(tmp_path / "resume.safetensors")
    SafeCheckpoint().save_checkpoint(
        {k: v for k, v in state.items() if k != key}, tmp_path / "resume.safetensors"
    )
    with pytest.raises(BrokenFile, match=f"not one of an interrupted training, it holds no {key}"):
        fit(small_net(), recipe, tmp_path, resume=True, progress=False)


@pytest.mark.parametrize("scores", ["0.1", [0.1, "x"], [[0.1]], {"a": 0.1}, [True]])
def test_scores_of_a_state_that_are_no_numbers_are_refused(tmp_path: Path, scores: object) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    fit(small_net(), recipe, tmp_path, progress=False)
    state = SafeCheckpoint().load_checkpoint(tmp_path / "resume.safetensors")
    SafeCheckpoint().save_checkpoint({**state, "scores": scores}, tmp_path / "resume.safetensors")
    with pytest.raises(BrokenFile, match="its scores of an image are no numbers"):
        fit(small_net(), recipe, tmp_path, resume=True, progress=False)


def test_results_that_another_process_wrote_meanwhile_are_not_replaced(tmp_path: Path) -> None:
    recipe = replace(SMALL, trainer=replace(SMALL.trainer, max_epochs=1))
    before = result_times(tmp_path)
    weights = fit(small_net(), recipe, tmp_path, progress=False).checkpoint.read_bytes()
    with pytest.raises(BadInput, match="got results from another process meanwhile"):
        fit(small_net(), recipe, tmp_path, progress=False, results=before)
    assert (tmp_path / "weights.safetensors").read_bytes() == weights
