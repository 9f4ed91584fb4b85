"""The capacity study: which variants, which bounds, and that finished trainings survive whatever
happens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.random_networks import Residual, conv
from torch import nn

from nnstretch.capture import capture
from nnstretch.cli import main as command
from nnstretch.cli.study.capacity_json import as_json
from nnstretch.cli.study.capacity_show import verdict
from nnstretch.errors import BadInput, BrokenFile, NoPlan
from nnstretch.stretch import NetworkAnalysis
from nnstretch.study.capacity import bounds as rules
from nnstretch.study.capacity import journal as capacity_journal
from nnstretch.study.capacity import plans as capacity_plans
from nnstretch.study.capacity.bounds import (
    BranchShare,
    CapacityBounds,
    CapacityPoint,
    branch_shapes,
    lower_bounds,
)
from nnstretch.study.capacity.experiment import CapacityRequest, run_capacity_study
from nnstretch.train import TrainResult, load_recipe
from nnstretch.train.classifier import Classifier

FACTORY = """
from support.random_networks import Residual, conv
from torch import nn

def make(width=16):
    stage = [Residual(8, width, 2), Residual(width, width), Residual(width, width), Residual(width, width)]
    return nn.Sequential(conv(3, 8, stride=2), *stage, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
"""
QUICK = [
    "--data.image_px",
    "16",
    "--data.batch_images",
    "128",
    "--data.held_out",
    "0.8",
    "--trainer.threads",
    "1",
    "--trainer.precision",
    "fp32",
]
FEW = ["--depths", "1", "--widths", "0.5", "--seeds", "1"]
shares = st.sampled_from([0.25, 0.3, 0.5, 0.75, 1.0])
points = st.lists(st.builds(CapacityPoint, shares, shares, st.booleans()), max_size=12)


def net() -> nn.Module:
    stage = [Residual(8, 16, 2), Residual(16, 16), Residual(16, 16), Residual(16, 16)]
    return nn.Sequential(
        conv(3, 8, stride=2), *stage, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


def stretcher_of(module: nn.Module) -> NetworkAnalysis:
    return NetworkAnalysis(capture(module, torch.zeros(1, 3, 16, 16), "net"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(FACTORY)
    return f"{tmp_path / 'net.py'}:make"


def wanted_of(model: str, out: Path, epochs: int = 1, **changes: Any) -> CapacityRequest:
    recipe = load_recipe("digits", [f"model={model}", *QUICK, f"trainer.max_epochs={epochs}"])
    return CapacityRequest(
        model, recipe, out, **{"depths": (1.0,), "widths": (0.5,), "seeds": 1} | changes
    )


class Fits:
    """Stands in for training: accuracy as told for each call, or an interruption."""

    def __init__(self, *accuracies: float | None) -> None:
        self.accuracies, self.calls = list(accuracies), 0

    def __call__(self, module: nn.Module, recipe: Any, out: Path, **_: Any) -> TrainResult:
        self.calls += 1
        accuracy = self.accuracies.pop(0) if self.accuracies else 0.9
        if accuracy is None:
            raise KeyboardInterrupt
        return TrainResult(
            out / "weights", recipe.trainer.max_epochs, accuracy, 1.0, (), out / "best", accuracy
        )


# Which variants


def test_the_published_pairs_are_among_the_default_variants() -> None:
    pairs = {(shape.main, shape.second) for shape in branch_shapes()}
    assert {
        (BranchShare(0.5, 1.0), BranchShare(0.75, 0.4)),
        (BranchShare(0.5, 1.0), BranchShare(0.3, 1.0)),
        (BranchShare(1.0, 0.5), BranchShare(1.0, 0.3)),
    } <= pairs


@given(st.lists(shares, min_size=1), st.lists(shares, min_size=1))
def test_the_grid_varies_the_second_branch_and_the_first_is_never_smaller(
    depths: list[float], widths: list[float]
) -> None:
    grid = [shape for shape in branch_shapes(depths, widths) if shape.family == "grid"]
    assert {(shape.second.depth, shape.second.width) for shape in grid} == {
        (d, w) for d in depths for w in widths
    }
    assert all(
        (shape.depth, shape.width) == (shape.second.depth, shape.second.width) for shape in grid
    )


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_outside_its_range_is_refused(bad: float) -> None:
    with pytest.raises(BadInput, match=r"depths holds .*above 0 and is at most 1"):
        branch_shapes((1.0, bad))
    with pytest.raises(BadInput, match="widths holds"):
        branch_shapes((1.0,), (bad,))


# Which bounds


def test_the_bounds_are_the_smallest_shares_inside_which_all_hold() -> None:
    grid = [
        (1.0, 0.75, True),
        (1.0, 0.5, True),
        (1.0, 0.3, False),
        (0.5, 0.75, True),
        (0.5, 0.5, True),
        (0.5, 0.3, False),
    ]
    assert lower_bounds([CapacityPoint(*row) for row in grid]) == CapacityBounds(0.5, 0.5, 4)


def test_a_share_that_holds_below_one_that_fails_does_not_count() -> None:
    assert lower_bounds(
        [
            CapacityPoint(1.0, 0.75, True),
            CapacityPoint(1.0, 0.5, False),
            CapacityPoint(1.0, 0.3, True),
        ]
    ) == CapacityBounds(1.0, 0.75, 1)


def test_of_two_regions_the_one_with_more_variants_is_taken() -> None:
    deep = [CapacityPoint(1.0, w, True) for w in (0.75, 0.5, 0.3)]
    assert lower_bounds(
        [
            *deep,
            CapacityPoint(0.5, 0.75, True),
            CapacityPoint(0.5, 0.5, False),
            CapacityPoint(0.5, 0.3, False),
        ]
    ) == CapacityBounds(1.0, 0.3, 3)


def test_bounds_are_one_where_no_width_holds() -> None:
    assert lower_bounds(
        [CapacityPoint(1.0, 0.75, False), CapacityPoint(0.5, 0.5, True)]
    ) == CapacityBounds(1.0, 1.0, 0)
    assert lower_bounds([]) == CapacityBounds(1.0, 1.0, 0)


@given(points)
def test_no_variant_inside_the_bounds_fails_and_both_shares_were_tried(
    measured: list[CapacityPoint],
) -> None:
    found = lower_bounds(measured)
    inside = [p for p in measured if p.depth >= found.depth and p.width >= found.width]
    if found.supporting_variants:
        assert len(inside) == found.supporting_variants
        assert all(p.holds for p in inside)
        assert found.depth in {p.depth for p in inside}
        assert found.width in {p.width for p in inside}


@given(points)
def test_no_other_pair_of_bounds_admits_more_variants(measured: list[CapacityPoint]) -> None:
    found = lower_bounds(measured)
    for depth in (0.25, 0.3, 0.5, 0.75, 1.0):
        for width in (0.25, 0.3, 0.5, 0.75, 1.0):
            region = [p for p in measured if p.depth >= depth and p.width >= width]
            if all(p.holds for p in region):
                assert len(region) <= found.supporting_variants


@given(points, st.integers(0, 11))
def test_a_variant_that_fails_never_widens_what_is_admitted(
    measured: list[CapacityPoint], at: int
) -> None:
    worse = [replace(p, holds=p.holds and i != at) for i, p in enumerate(measured)]
    assert lower_bounds(worse).supporting_variants <= lower_bounds(measured).supporting_variants


def test_the_margin_is_the_tolerance_and_one_standard_error_of_a_difference() -> None:
    assert rules.accuracy_margin(0.005, [0.0, 0.0], 1) == 0.005
    assert rules.accuracy_margin(0.005, [0.01, 0.01, 0.4], 2) == pytest.approx(0.015)
    assert rules.accuracy_margin(0.005, [0.01, 0.01, 0.4], 8) == pytest.approx(0.010)
    assert rules.seed_deviation([0.9]) == 0.0
    assert rules.seed_deviation([0.8, 1.0]) == pytest.approx(0.1414, abs=1e-4)


def test_exactly_the_margin_below_the_original_still_holds() -> None:
    assert rules.is_within_margin(0.99 - 0.005, 0.99, 0.005)
    assert not rules.is_within_margin(0.9849, 0.99, 0.005)


# Plans


def test_every_variant_branches_the_stage_and_keeps_stem_and_head() -> None:
    analysis = stretcher_of(net())
    for one in capacity_plans.plan_candidates(analysis, "net", branch_shapes()):
        assert one.shape is not None
        kinds = [segment.segment.branched for segment in one.stretched.segments]
        assert kinds.count(True) == 1
        assert not kinds[0]
        assert not kinds[-1]
        main, second = next(
            s.segment.branches for s in one.stretched.segments if s.segment.branched
        )
        assert isinstance(main.depth, int)
        assert isinstance(second.depth, int)
        assert (main.depth, second.depth) == tuple(
            -int(-4 * share.depth // 1) for share in (one.shape.main, one.shape.second)
        )
        assert not one.refusals


def test_shapes_that_make_the_same_network_are_trained_once_under_the_largest_share() -> None:
    found = capacity_plans.plan_candidates(
        stretcher_of(net()), "net", branch_shapes((0.5, 0.4, 0.3), (0.5,))
    )
    grid = [
        one.shape.depth for one in found if one.shape is not None and one.shape.family == "grid"
    ]
    assert grid == [0.5]
    assert len({one.key for one in found}) == len(found)


def test_equal_plans_of_networks_that_differ_inside_have_different_keys() -> None:
    def twice(inner: int) -> NetworkAnalysis:
        return stretcher_of(
            nn.Sequential(
                nn.Conv2d(3, inner, 3),
                nn.ReLU(),
                nn.Conv2d(inner, 4, 3),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
        )

    one, other = (capacity_plans.original_candidate(twice(inner), "net") for inner in (8, 12))
    assert one.stretched.plan == other.stretched.plan
    assert one.key != other.key


def test_a_network_without_a_stage_to_branch_is_refused() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    with pytest.raises(NoPlan, match="no stage of net can be branched"):
        capacity_plans.plan_candidates(stretcher_of(flat), "net", branch_shapes())


# What is kept


def test_half_a_line_is_dropped_and_the_rest_is_kept(tmp_path: Path) -> None:
    journal = capacity_journal.open_journal(tmp_path / "out", {"model": "a"})
    journal.add(capacity_journal.FinishedTraining("p", 0, 0.5, 1, 2.0))
    with journal.path.open("a") as file:
        file.write('{"plan": "q", "se')
    again = capacity_journal.open_journal(tmp_path / "out", {"model": "a"})
    assert again.trainings == journal.trainings
    again.add(capacity_journal.FinishedTraining("q", 0, 0.25, 1, 2.0))
    assert len(capacity_journal.open_journal(tmp_path / "out", {"model": "a"}).trainings) == 2


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


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / capacity_journal.JOURNAL_FILE).write_text('{"cat": 1}\n')
    with pytest.raises(BrokenFile, match="not a capacity study"):
        capacity_journal.open_journal(tmp_path, {"model": "a"})


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


def test_a_changed_network_of_the_same_name_is_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits())
    run_capacity_study(wanted_of(model, tmp_path / "out"))
    (tmp_path / "net.py").write_text(FACTORY.replace("width=16", "width=32"))
    with pytest.raises(BadInput, match="macs is"):
        run_capacity_study(wanted_of(model, tmp_path / "out"))


def photos(folder: Path, images: int) -> Path:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / label / f"{number}.png")
    return folder


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
    with pytest.raises(BadInput, match=r"images_sha256 is .*, the study kept in"):
        run_capacity_study(wanted)
    (root / "dog" / "a.png").rename(root / "dog" / "0.png")
    (tmp_path / "net.py").write_text(FACTORY.replace("nn.Flatten()", "nn.SiLU(), nn.Flatten()"))
    with pytest.raises(BadInput, match=r"network_sha256 is .*, the study kept in"):
        run_capacity_study(wanted)


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


# The study, without training


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


def test_a_failure_everywhere_says_so_plainly(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnstretch.train.fit", Fits(0.99, 0.5, 0.5, 0.5))
    result = as_json(run_capacity_study(wanted_of(model, tmp_path / "out")))
    assert (result["min_depth"], result["min_width"]) == (1.0, 1.0)
    assert verdict(result).startswith("no share of depth or width holds")
    assert "both bounds are 1.0" in verdict(result)


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
        (["--branched.drop", "0.1"], "branched.drop is 0.1"),
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


# The study, with training


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
            for p in make_candidate_module(one, 0, captured).parameters()
            if p.shape == (8, 3, 3, 3)
        )
        assert torch.equal(stem, module[0][0].weight)
        fresh, again, other = (
            next(make_candidate_module(one, seed, None).parameters()) for seed in (0, 0, 1)
        )
        assert torch.equal(fresh, again)
        assert not torch.equal(fresh, other)
