"""The page that compares ways of training, from a journal whose accuracies are known.

What is subtracted from what, and what is counted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ablation_page import claims, with_error
from ablation_runs import BOTH, COMMON, PARTS, TEAMS, Bench, Run, trainings
from support.scripts import load_command

main = load_command("training_ablation").main

NETWORK, EPOCHS, SEEDS = "ResNet-18", 36, 3
ACCURACY = {
    ("original", ""): (0.90, 0.92, 0.94),
    ("from scratch", "cpu+dsp"): (0.88, 0.93, 0.93),
    (BOTH.name, "cpu+dsp"): (0.92, 0.93, 0.97),
    ("from scratch", "cpu+gpu+dsp"): (0.91, 0.93, 0.95),
    (BOTH.name, "cpu+gpu+dsp"): (0.90, 0.92, 0.94),
}


def journal_in(work: Path, seeds: int, first_split: int | None = None) -> Bench:
    """As if every training of the claims had been done, each in half a minute."""
    bench = Bench("digits", COMMON, EPOCHS, EPOCHS, work, first_split=first_split)
    for run in trainings(bench, [NETWORK], "", range(seeds)):
        numbers = {"accuracy": ACCURACY[run.way, run.team][run.seed % SEEDS], "seconds": 30.0}
        with bench.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": run.key, "numbers": numbers}) + "\n")
    return Bench("digits", COMMON, EPOCHS, EPOCHS, work, first_split=first_split)


@pytest.mark.slow
def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    *_, first, second, empty, last = claims(journal_in(tmp_path, SEEDS), [NETWORK], SEEDS)
    told = (
        "92.00 ± 2.00 | 91.33 ± 2.89 | 94.00 ± 2.65 | +2.00 ± 0.58 | +2.67 ± 1.33 |",
        "92.00 ± 2.00 | 93.00 ± 2.00 | 92.00 ± 2.00 | +0.00 ± 0.00 | -1.00 ± 0.00 |",
    )
    for row, team, numbers in zip((first, second), TEAMS, told, strict=True):
        assert row.startswith(f"| {NETWORK} | {'+'.join(team)} | 0.8")
        assert row.endswith(numbers)
    assert not empty
    assert (
        last == "Mean of the rows: +1.00 ± 0.29 against the original, +0.83 ± 0.67 against scratch."
    )


def test_a_difference_that_is_the_same_in_every_seed_has_no_error() -> None:
    assert with_error([0.25, 0.25, 0.25]) == "+0.25 ± 0.00"
    assert with_error([1.0, -1.0]) == "+0.00 ± 1.00"
    assert with_error([-0.001, 0.0]) == "+0.00 ± 0.00"
    assert with_error([0.25]) == "+0.25"


@pytest.mark.slow
def test_the_page_counts_the_trainings_it_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal_in(tmp_path, 2 * SEEDS)
    page = tmp_path / "page.md"
    shared = [
        "--task",
        "digits",
        "--networks",
        NETWORK,
        "--epochs",
        str(EPOCHS),
        "--original-epochs",
        str(EPOCHS),
        "--ablate",
        "",
    ]
    monkeypatch.setattr(
        sys, "argv", ["ablate_training.py", *shared, "--work", str(tmp_path), "--out", str(page)]
    )
    assert main() == 0
    text = page.read_text(encoding="utf-8")
    assert text.splitlines()[-1].startswith(
        "15 trainings took 8 minutes"
    )  # five of each of three seeds; the journal has thirty
    assert "All seeds share one split." in text
    assert " ".join(sys.argv[1:3]) in text


def test_a_training_of_claims_and_of_parts_is_one(tmp_path: Path) -> None:
    bench = Bench("digits", COMMON, EPOCHS, EPOCHS, tmp_path)
    told = set(trainings(bench, [NETWORK], NETWORK, range(1)))
    assert len(told) == 5 + len(PARTS) - 1


@pytest.mark.slow
def test_every_training_of_a_seed_is_on_that_seeds_split(tmp_path: Path) -> None:
    shared = Bench("digits", COMMON, EPOCHS, EPOCHS, tmp_path)
    own = Bench("digits", COMMON, EPOCHS, EPOCHS, tmp_path, first_split=10)
    for run in trainings(own, [NETWORK], NETWORK, range(3)):
        assert shared.recipe_of(run).data.split_seed == 0
        assert own.recipe_of(run).data.split_seed == 10 + run.seed


def test_trainings_on_other_splits_are_kept_apart(tmp_path: Path) -> None:
    own = journal_in(tmp_path, 1, first_split=10)
    assert Run(NETWORK, "", "original", EPOCHS, 0).key in own.done
    for keys, first_split in (
        (COMMON, None),
        (COMMON, 11),
        ((*COMMON, "data.split_seed=10"), None),
    ):
        assert not Bench("digits", keys, EPOCHS, EPOCHS, tmp_path, first_split=first_split).done


def test_two_ways_to_say_the_split_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["ablate_training.py", "--first-split", "10", "--set", "data.split_seed=1"]
    )
    with pytest.raises(SystemExit):
        main()
    assert "--first-split and data.split_seed both" in capsys.readouterr().err
