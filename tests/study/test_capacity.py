"""The study of capacity from end to end, with and without training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.capacity_study import FEW, QUICK, Fits, wanted_of

from nnstretch.cli import main as command
from nnstretch.cli.study.capacity_json import as_json
from nnstretch.cli.study.capacity_show import show, verdict
from nnstretch.stretch import NetworkAnalysis
from nnstretch.study.capacity import journal as capacity_journal
from nnstretch.study.capacity import plans as capacity_plans
from nnstretch.study.capacity.bounds import (
    CapacityBounds,
    branch_shapes,
)
from nnstretch.study.capacity.experiment import run_capacity_study
from nnstretch.train.classifier import Classifier


@pytest.mark.slow
def test_rows_bounds_and_what_more_seeds_add(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nnstretch.train.fit", Fits(0.90, 0.91, 0.80, 0.89)
    )  # original, grid, shallow + narrow, two narrow
    wanted = wanted_of(model, tmp_path / "out", tolerance=0.02)
    found = run_capacity_study(wanted)
    assert [
        (row.candidate.shape.family, found.is_accurate(row))
        for row in found.rows
        if row.candidate.shape
    ] == [
        ("grid", True),
        ("shallow + narrow", False),
        ("two narrow", True),
    ]
    assert found.bounds == CapacityBounds(1.0, 0.5, 2)
    assert verdict(as_json(found)).endswith(
        "within 2.00 points of the original; no smaller depth was tried at this width, no smaller"
        " width was tried at this depth"
    )

    more = Fits(0.92, 0.93, 0.94, 0.95)
    monkeypatch.setattr("nnstretch.train.fit", more)
    again = run_capacity_study(replace(wanted, seeds=2))
    assert (more.calls, again.reused) == (4, 4)
    assert again.original.accuracies == (0.90, 0.92)
    assert again.margin == pytest.approx(0.02 + (0.02 + 0.06) / 2 / 2**0.5, abs=1e-9)


@pytest.mark.slow
def test_a_failure_everywhere_says_so_plainly(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits(0.99, 0.5, 0.5, 0.5))
    result = as_json(run_capacity_study(wanted_of(model, tmp_path / "out")))
    assert (result["min_depth"], result["min_width"]) == (1.0, 1.0)
    assert verdict(result).startswith("no share of depth or width holds")
    assert "both bounds are 1.0" in verdict(result)
    shown = StringIO()
    show(result, Console(file=shown, width=300))
    assert re.search(r"one of \d+ held-out images is \d+\.\d\d points\n", shown.getvalue())
    limits = "--min-depth 1 --min-width 1"
    assert result["search"] == f"nnstretch search {model} --input 1,3,16,16 --soc SOC {limits}"


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_next_run_trains_the_rest(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [model, *QUICK, *FEW, "--epochs", "1", "--out", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr("nnstretch.train.fit", Fits(0.9, 0.9, None))
    assert command(["study", "capacity", *words]) == 130
    said = capsys.readouterr().err
    assert said.startswith("nnstretch: interrupted, finished trainings are kept in")
    assert said.count("\n") == 1
    rest = Fits()
    monkeypatch.setattr("nnstretch.train.fit", rest)
    assert command(["study", "capacity", *words]) == 0
    assert rest.calls == 2
    assert json.loads(capsys.readouterr().out)["reused"] == 2


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["--seeds", "0"], "seeds is 0"),
        (["--tolerance", "-1"], "tolerance is -1 points"),
        (["--tolerance", "nan"], "tolerance is nan"),
        (["--depths", "1,0"], "depths holds 0"),
        (["--loss.distill", "0.5"], "loss.distill is 0.5"),
        (["--loss.features", "0.5"], "loss.features is 0.5"),
        (["--branched.drop", "0.1"], "branched.drop is 0.1"),
        (
            ["--branched.inherit", "none", "--weights", "w.safetensors"],
            "branched.inherit is none, capacity study",
        ),
        (["--epochs", "0"], "trainer.max_epochs, 0 is out of range"),
        (["--epochs", "1", "--trainer.max_epochs", "2"], "--trainer.max_epochs is given, too"),
        (["--weights", "nowhere.safetensors"], "no weights nowhere.safetensors"),
        (["--recipe", "no_such"], "no recipe no_such"),
    ],
)
def test_bad_input_is_refused_in_one_line_before_anything_is_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], culprit: str
) -> None:
    assert (
        command(["study", "capacity", model, *words, "--out", str(tmp_path / "out"), "--json"]) == 1
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert culprit in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_plan_or_an_unwritable_folder_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["study", "capacity", "plan.yaml"]) == 1
    assert "it is a plan already" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert (
        command(["study", "capacity", model, *QUICK, "--out", str(tmp_path / "file" / "out")]) == 1
    )
    assert "nnstretch: cannot" in capsys.readouterr().err


@pytest.mark.slow
def test_the_verb_trains_judges_and_says_what_to_type(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        model,
        *QUICK,
        *FEW,
        "--epochs",
        "1",
        "--tolerance",
        "100",
        "--out",
        str(tmp_path / "out"),
    ]
    assert command(["study", "capacity", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {
        "model",
        "recipe",
        "original",
        "variants",
        "min_depth",
        "min_width",
        "tolerance",
    } <= result.keys()
    assert {"accuracy", "macs", "params"} <= result["original"].keys()
    for row in result["variants"]:
        assert {
            "depth",
            "width",
            "accuracy",
            "spread",
            "macs",
            "params",
            "epochs",
            "seconds",
            "holds",
        } <= row.keys()
        assert row["holds"]
        assert row["seconds"] > 0
    assert (result["min_depth"], result["min_width"], result["inside"]) == (0.5, 0.4, 3)
    assert not list((tmp_path / "out" / "unfinished").iterdir())
    assert command(["study", "capacity", *words]) == 0
    shown = capsys.readouterr().out
    assert ("hardly learnt anything" in shown) == (result["original"]["accuracy"] < 0.2)
    assert "--min-depth 0.5 --min-width 0.4" in shown
    assert (
        "no smaller depth was tried at this width, no smaller width was tried at this depth"
        in " ".join(shown.split())
    )


@pytest.mark.slow
def test_an_interrupted_training_goes_on_at_its_last_epoch_to_the_same_accuracy(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_capacity_study(wanted_of(model, tmp_path / "whole", epochs=2))
    begin = Classifier.on_train_epoch_start
    epochs: list[int] = []

    def interrupted(self: Classifier) -> None:
        epochs.append(self.current_epoch)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        begin(self)

    monkeypatch.setattr(Classifier, "on_train_epoch_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_capacity_study(wanted_of(model, tmp_path / "parts", epochs=2))
    parts = run_capacity_study(wanted_of(model, tmp_path / "parts", epochs=2))
    assert epochs[:4] == [0, 1, 1, 0]
    assert parts.reused == 0
    assert [row.accuracies for row in (parts.original, *parts.rows)] == [
        row.accuracies for row in (whole.original, *whole.rows)
    ]


HANGING = """
import sys, time
from nnstretch.cli import main as command
from nnstretch.train.classifier import Classifier

begin, begun = Classifier.on_train_epoch_start, []

def hang(self):
    begun.append(self.current_epoch)
    if len(begun) == 4:
        print("hanging", flush=True)
        time.sleep(600)
    begin(self)

Classifier.on_train_epoch_start = hang
command(["study", "capacity", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_a_study_killed_in_its_second_training_keeps_the_first_and_goes_on(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [model, *QUICK, *FEW, "--epochs", "2", "--out", str(tmp_path / "out")]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, *words], env=here, stdout=subprocess.PIPE
    ) as study:
        assert study.stdout is not None
        assert study.stdout.readline() == b"hanging\n"
        study.send_signal(signal.SIGKILL)
    journal = tmp_path / "out" / capacity_journal.JOURNAL_FILE
    kept = journal.read_bytes()
    assert kept.count(b"\n") == 2, "the settings and one training"

    begin, begun = Classifier.on_train_epoch_start, []
    monkeypatch.setattr(
        Classifier,
        "on_train_epoch_start",
        lambda self: (begun.append(self.current_epoch), begin(self))[1],
    )
    found = run_capacity_study(wanted_of(model, tmp_path / "out", epochs=2))
    assert begun == [
        1,
        0,
        1,
        0,
        1,
    ], "the second training goes on at its second epoch, two more follow"
    assert found.reused == 1
    assert journal.read_bytes().startswith(kept)
    assert journal.read_bytes().count(b"\n") == 5


@pytest.mark.slow
def test_a_kill_between_the_last_epoch_and_the_journal_costs_no_training(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(capacity_journal.CapacityJournal, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            run_capacity_study(wanted_of(model, tmp_path / "out"))
    begin, begun = Classifier.on_train_epoch_start, []
    monkeypatch.setattr(
        Classifier,
        "on_train_epoch_start",
        lambda self: (begun.append(self.current_epoch), begin(self))[1],
    )
    found = run_capacity_study(wanted_of(model, tmp_path / "out"))
    assert begun == [0, 0, 0], "four networks, the first was ready"
    assert found.original.epochs == 1


@pytest.mark.slow
def test_given_weights_are_what_every_network_starts_from(model: str, tmp_path: Path) -> None:
    from nnstretch.capture import load_model
    from nnstretch.study.capacity.experiment import capture_original, make_candidate_module
    from nnstretch.train import save_weights

    module = load_model(model)
    with torch.no_grad():
        module[0][0].weight.add_(1)
    save_weights(module, tmp_path / "w.safetensors")
    wanted = wanted_of(model, tmp_path / "out", weights=tmp_path / "w.safetensors")
    captured = capture_original(wanted)
    analysis = NetworkAnalysis(captured.graph)
    for one in (
        capacity_plans.original_candidate(analysis, model),
        *capacity_plans.plan_candidates(analysis, model, branch_shapes()),
    ):
        stem = next(
            p
            for p in make_candidate_module(one, 0, captured, inherit=True).parameters()
            if p.shape == (8, 3, 3, 3)
        )
        assert torch.equal(stem, module[0][0].weight)
        fresh, again, other = (
            next(make_candidate_module(one, seed, captured, inherit=False).parameters())
            for seed in (0, 0, 1)
        )
        assert torch.equal(fresh, again)
        assert not torch.equal(fresh, other)
