"""What a study of capacity keeps: rows that go on, and rows that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support.capacity_study import FACTORY, Fits, wanted_of

from nnstretch.capture import load_model
from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files import journal as journals
from nnstretch.study.capacity import journal as capacity_journal
from nnstretch.study.capacity.experiment import run_capacity_study
from nnstretch.train import save_weights


def test_half_a_line_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    folder = capacity_journal.make_folder(tmp_path / "out")
    journal = capacity_journal.open_journal(folder, {"model": "a"})
    journal.add(capacity_journal.FinishedTraining("p", 0, 0.5, 1, 2.0))
    with journal.path.open("a") as file:
        file.write('{"plan": "q", "se')
    again = capacity_journal.open_journal(folder, {"model": "a"})
    assert again.trainings == journal.trainings
    again.add(capacity_journal.FinishedTraining("q", 0, 0.25, 1, 2.0))
    assert len(capacity_journal.open_journal(folder, {"model": "a"}).trainings) == 2


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "{",
        '{"plan": "p"}',
        '{"plan": "p", "seed": 0, "accuracy": 7, "epochs": 1, "seconds": 1}',
        '{"plan": "p", "seed": 0, "accuracy": "x", "epochs": 1, "seconds": 1}',
    ],
)
def test_a_broken_journal_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = capacity_journal.open_journal(tmp_path, {"model": "a"}).path
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BrokenFile, match="line 2"):
        capacity_journal.open_journal(tmp_path, {"model": "a"})


@pytest.mark.slow
def test_two_studies_do_not_write_one_journal(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    monkeypatch.setattr(journals, "PATIENCE_S", 0.2)
    torn = tmp_path / capacity_journal.JOURNAL_FILE
    torn.write_text('{"format": 1')
    with (
        journals.only_writer(tmp_path),
        pytest.raises(BadInput, match="is written by another process"),
    ):
        run_capacity_study(wanted_of(model, tmp_path))
    assert torn.read_text() == '{"format": 1', "the line that the other was writing"


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / capacity_journal.JOURNAL_FILE).write_text('{"cat": 1}\n')
    with pytest.raises(BrokenFile, match="not a capacity study"):
        capacity_journal.open_journal(tmp_path, {"model": "a"})


@pytest.mark.slow
def test_another_model_recipe_or_start_is_refused_by_name(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    wanted = wanted_of(model, tmp_path / "out")
    run_capacity_study(wanted)
    hotter = replace(wanted.recipe, optimizer=replace(wanted.recipe.optimizer, lr=0.5))
    with pytest.raises(
        BadInput, match=r"recipe\.optimizer\.lr is 0\.5, the study kept in .* has 0\.05"
    ):
        run_capacity_study(replace(wanted, recipe=hotter))
    with pytest.raises(BadInput, match=r"model is .*make\?width=24, the study kept in"):
        run_capacity_study(replace(wanted, model=f"{model}?width=24"))
    threads = replace(wanted.recipe, trainer=replace(wanted.recipe.trainer, threads=2))
    assert run_capacity_study(replace(wanted, recipe=threads)).reused == 4


def test_what_was_changed_is_named_before_what_follows_from_it(tmp_path: Path) -> None:
    before = {"macs": 1, "images_sha256": "a", "recipe.data.held_out": 0.2}
    capacity_journal.open_journal(tmp_path, before)
    now = {"macs": 2, "images_sha256": "b", "recipe.data.held_out": 0.4}
    with pytest.raises(BadInput, match=r"^recipe\.data\.held_out is 0\.4, the study kept in "):
        capacity_journal.open_journal(tmp_path, now)


@pytest.mark.slow
def test_a_changed_network_of_the_same_name_is_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    run_capacity_study(wanted_of(model, tmp_path / "out"))
    (tmp_path / "net.py").write_text(FACTORY.replace("width=16", "width=32"))
    with pytest.raises(BadInput, match="macs is"):
        run_capacity_study(wanted_of(model, tmp_path / "out"))


@pytest.mark.slow
def test_trainings_that_inherited_by_another_rule_are_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    save_weights(load_model(model), tmp_path / "w.safetensors")
    wanted = wanted_of(model, tmp_path / "out", weights=tmp_path / "w.safetensors")
    path = run_capacity_study(wanted).journal
    head, *rows = path.read_text().splitlines(keepends=True)
    old = json.loads(head)
    assert old.pop("inheritance") == 2
    path.write_text(json.dumps(old) + "\n" + "".join(rows))
    with pytest.raises(BadInput, match=r"inheritance is 2, the study kept in .* has not there"):
        run_capacity_study(wanted)


def photos(folder: Path, images: int) -> Path:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / label / f"{number}.png")
    return folder


@pytest.mark.slow
def test_another_code_or_other_images_are_refused_where_their_sizes_are_equal(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    root = photos(tmp_path / "photos", 8)
    wanted = wanted_of(model, tmp_path / "out")
    folder = replace(wanted.recipe.data, name="folder", root=str(root), batch_images=2)
    wanted = replace(wanted, recipe=replace(wanted.recipe, data=folder))
    run_capacity_study(wanted)
    assert run_capacity_study(wanted).reused == 4
    (root / "dog" / "0.png").rename(root / "dog" / "a.png")
    with pytest.raises(BadInput, match=r"the images are others than in the study kept in"):
        run_capacity_study(wanted)
    (root / "dog" / "a.png").rename(root / "dog" / "0.png")
    (tmp_path / "net.py").write_text(FACTORY.replace("nn.Flatten()", "nn.SiLU(), nn.Flatten()"))
    with pytest.raises(BadInput, match=r"the network is another than in the study kept in"):
        run_capacity_study(wanted)


@pytest.mark.slow
def test_a_journal_of_before_its_hashes_goes_on(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    wanted = wanted_of(model, tmp_path / "out")
    path = run_capacity_study(wanted).journal
    head, *rows = path.read_text().splitlines(keepends=True)
    old = {key: value for key, value in json.loads(head).items() if "sha256" not in key}
    assert len(old) == len(json.loads(head)) - 2
    path.write_text(json.dumps(old) + "\n" + "".join(rows))
    assert run_capacity_study(wanted).reused == 4
