"""The page that compares ways of training, from a journal whose accuracies are known: what is subtracted from what, and what is counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from ablate_runs import BOTH, COMMON, PARTS, TEAMS, Bench, Run
from ablate_training import claims, main, trainings, with_error

NETWORK, EPOCHS, SEEDS = "ResNet-18", 36, 3
ACCURACY = {"original": (0.90, 0.92, 0.94), "from scratch": (0.91, 0.91, 0.94), BOTH.name: (0.92, 0.93, 0.97)}


def journal_in(work: Path, seeds: int, first_split: int | None = None) -> Bench:
    """As if every training of the claims had been done, each in half a minute."""
    bench = Bench("digits", COMMON, EPOCHS, EPOCHS, work, first_split=first_split)
    for run in trainings(bench, [NETWORK], "", range(seeds)):
        numbers = {"accuracy": ACCURACY[run.way][run.seed % SEEDS], "seconds": 30.0}
        with bench.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": run.key, "numbers": numbers}) + "\n")
    return Bench("digits", COMMON, EPOCHS, EPOCHS, work, first_split=first_split)


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    *_, first, second, empty, last = claims(journal_in(tmp_path, SEEDS), [NETWORK], SEEDS)
    told = "92.00 ± 2.00 | 92.00 ± 1.73 | 94.00 ± 2.65 | +2.00 ± 0.58 | +2.00 ± 0.58 |"
    for row, team in zip((first, second), TEAMS, strict=True):
        assert row.startswith(f"| {NETWORK} | {'+'.join(team)} | 0.8")
        assert row.endswith(told)
    assert not empty
    assert last == "Mean of the rows: +2.00 ± 0.58 against the original, +2.00 ± 0.58 against scratch."


def test_a_difference_that_is_the_same_in_every_seed_has_no_error() -> None:
    assert with_error([0.25, 0.25, 0.25]) == "+0.25 ± 0.00"
    assert with_error([1.0, -1.0]) == "+0.00 ± 1.00"


def test_the_page_counts_the_trainings_it_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal_in(tmp_path, 2 * SEEDS)
    page = tmp_path / "page.md"
    shared = ["--task", "digits", "--networks", NETWORK, "--epochs", str(EPOCHS), "--original-epochs", str(EPOCHS), "--ablate", ""]
    monkeypatch.setattr(sys, "argv", ["ablate_training.py", *shared, "--work", str(tmp_path), "--out", str(page)])
    assert main() == 0
    text = page.read_text(encoding="utf-8")
    assert text.splitlines()[-1].startswith("15 trainings took 8 minutes")  # five of each of three seeds; the journal has thirty
    assert "All seeds share one split." in text
    assert " ".join(sys.argv[1:3]) in text


def test_a_training_of_claims_and_of_parts_is_one(tmp_path: Path) -> None:
    bench = Bench("digits", COMMON, EPOCHS, EPOCHS, tmp_path)
    both = trainings(bench, [NETWORK], NETWORK, range(1))
    assert len(set(both)) == 5 + len(PARTS) - 1


def test_seeds_with_splits_of_their_own_are_kept_apart(tmp_path: Path) -> None:
    shared, own = Bench("digits", COMMON, EPOCHS, EPOCHS, tmp_path), journal_in(tmp_path, 1, first_split=10)
    assert shared.journal != own.journal
    assert not shared.done
    assert Run(NETWORK, "", "original", EPOCHS, 0).key in own.done
    assert shared.split_keys(2) == COMMON
    assert own.split_keys(2) == (*COMMON, "data.split_seed=12")
