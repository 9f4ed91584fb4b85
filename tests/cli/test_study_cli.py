"""`nnstretch study`: one JSON object, goes on where it stopped, refuses by name, measures and
trains real networks.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from support.forked_verbs import ForkedVerb

from nnstretch.cli import main, overview, verb_module, verb_of
from nnstretch.cli.study.show import show
from nnstretch.files.plan_yaml import read_plan
from nnstretch.stretch import NetworkAnalysis, lower
from nnstretch.study.trial_leases import RETRY_HISTORY_KEY, WITHDRAWN_KEY, finished_trials

NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.down = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride > 1 or cin != cout else nn.Identity()
    def forward(self, x):
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.down(x))

class Net(nn.Module):
    input_shape = (3, 16, 16)
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU())
        self.stage1 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, 10)
    def forward(self, x):
        return self.fc(self.pool(self.stage1(self.stem(x))).flatten(1))

def make():
    return Net()
"""
LOOSE = ("--alpha", "9", "--beta", "9", "--min-width", "0.5")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return "net.py:make"


def study(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["study", *argv, "--soc", "mi9", *LOOSE, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_a_study_goes_on_where_it_stopped_and_leaves_its_best_plan(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = study(capsys, net, "--trials", "3", "--warm", "2", "--name", "s")
    assert {"trials", "feasible", "best", "gap_to_optimum"} <= first.keys()
    assert first["trials"] == 3
    assert first["gap_to_optimum"] == pytest.approx(0, abs=1e-9)
    second = study(capsys, net, "--trials", "5", "--warm", "2", "--name", "s")
    assert second["trials"] == 5
    assert second["best"][0] == first["best"][0]
    show(second, Console(width=200))
    assert "among plans whose merges concatenate" in capsys.readouterr().out
    folder = tmp_path / "studies" / "s"
    assert {"study.journal", "study.json", "best.yaml", "artifacts"} <= {
        p.name for p in folder.iterdir()
    }
    assert json.loads((folder / "study.json").read_text()) == second
    assert read_plan(folder / "best.yaml").model == net


@pytest.mark.slow
def test_a_study_measures_bundles_on_this_machine(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = study(
        capsys,
        net,
        "--trials",
        "2",
        "--warm",
        "2",
        "--objective",
        "measured",
        "--repeat",
        "3",
        "--seed",
        "0",
    )
    assert found["feasible"] >= 1
    assert all(best["measured_ms"] > 0 for best in found["best"])
    assert found["gap_to_optimum"] is None


@pytest.mark.slow
def test_a_study_trains_and_lists_the_front(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--epochs", "1", "--set", "data.image_px=16", "--set", "trainer.threads=1")
    found = study(
        capsys,
        net,
        "--trials",
        "2",
        "--warm",
        "2",
        "--objective",
        "both",
        "--min-macs",
        "1.1x",
        "--seed",
        "0",
        *short,
    )
    assert found["feasible"] >= 1
    assert any(len(segment["branches"]) > 1 for segment in found["best"][0]["segments"])
    assert all(0 < best["accuracy"] <= 1 and best["latency_ms"] > 0 for best in found["best"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (("--name", "a/b"), "name is 'a/b'"),
        (("--processors", "cpu,npu"), "npu"),
        (("--storage", "nosuch://host/x"), "nosuch"),
        (("--min-macs", "lots"), "--min-macs"),
        (("--min-macs", "50x"), "no plan"),
        (("--objective", "accuracy", "--recipe", "nosuch"), "nosuch"),
        (("--objective", "accuracy", "--set", "loss.distill=0.5"), "loss.distill is 0.5"),
        (
            ("--objective", "both", "--set", "branched.inherit=none"),
            "give --set branched.inherit=weights",
        ),
        (
            ("--objective", "accuracy", "--weights", "nosuch.safetensors"),
            "no weights nosuch.safetensors",
        ),
        (
            ("--weights", "nosuch.safetensors"),
            "--weights nosuch.safetensors with --objective latency, command line, it trains",
        ),
        (("--no-prune",), "--no-prune with --objective latency, command line, it trains nothing"),
        (
            ("--objective", "both", "--repeat", "3"),
            "--repeat 3 with --objective both, command line, it measures nothing",
        ),
        (
            ("--objective", "accuracy", "--epochs", "1", "--set", "trainer.max_epochs=3"),
            "--epochs is 1, command line, --set trainer.max_epochs is given, too",
        ),
        (("--epochs", "5"), "--epochs 5 with --objective latency, command line, it trains nothing"),
        (("--recipe", "mine.yaml"), "--recipe mine.yaml with --objective latency"),
        (
            ("--objective", "measured", "--set", "data.image_px=32"),
            "--set data.image_px=32 with --objective measured",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(
    net: str, argv: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", net, "--soc", "mi9", *argv]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("nnstretch: ")
    assert word in lines[0]


def test_a_study_refused_for_its_bounds_leaves_nothing_behind(net: str, tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "study"
    asked = ["study", net, "--soc", "mi9", "--min-macs", "50x", "--out", str(folder)]
    assert main(asked) == 1
    assert not folder.exists()
    folder.mkdir(parents=True)
    assert main(asked) == 1
    assert list(folder.iterdir()) == []


def test_results_of_another_study_are_not_replaced(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    study(capsys, net, "--trials", "1", "--name", "first", "--out", str(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    asked = ["study", net, "--soc", "mi9", *LOOSE, "--trials", "1", "--out", str(folder)]
    assert main([*asked, "--name", "second"]) == 1
    assert (
        f"{folder} has the results of study first, --out, name another" in capsys.readouterr().err
    )
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_a_study_of_other_limits_is_refused_by_name(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    study(capsys, net, "--trials", "1", "--name", "s")
    assert main(["study", net, "--soc", "mi9", "--trials", "1", "--name", "s"]) == 1
    assert "study 's' was made for another limits.alpha, 9.0 and not 0.5" in capsys.readouterr().err


def test_a_study_of_another_network_or_chip_is_refused_by_name(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(capsys, net, "--trials", "1", "--name", "s")
    (tmp_path / "net.py").write_text(
        NET.replace("3, 16, 3", "3, 24, 3").replace("(16, 3", "(24, 3")
    )
    assert main(["study", net, "--soc", "mi9", *LOOSE, "--trials", "1", "--name", "s"]) == 1
    assert "study 's' was made for another network_sha256" in capsys.readouterr().err


def test_verbs_of_two_words_are_found() -> None:
    assert verb_of(["study", "capacity", "net.py:make"]) == ("study capacity", ["net.py:make"])
    assert verb_of(["study", "net.py:make"]) == ("study", ["net.py:make"])
    assert verb_module("study capacity").__name__ == "nnstretch.cli.study.capacity"
    assert "  study " in overview()
    assert "  study capacity " in overview()


@pytest.mark.slow
def test_the_best_plan_can_be_lowered(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    from nnstretch.cli.loaded_model import load_model_argument

    found = study(capsys, net, "--trials", "2", "--name", "s", "--min-macs", "1.1x")
    lowered = lower(
        NetworkAnalysis(load_model_argument(net).graph), read_plan("studies/s/best.yaml")
    )
    assert lowered.macs == found["best"][0]["macs"]
    assert lowered.macs >= 1.1 * load_model_argument(net).graph.macs


@pytest.mark.slow
def test_of_two_commands_one_is_killed_in_mid_trial_and_the_study_completes(
    net: str, tmp_path: Path
) -> None:
    """Two processes, one journal.

    SIGKILL ends one while both run a trial, and the other repeats what it lost.
    """
    wanted, journal = 8, tmp_path / "s" / "study.journal"
    words = (
        f"--soc mi9 --trials {wanted} --warm 0 --lease-s 3 --name s --sampler random"
        " --objective accuracy --epochs 1 --set data.image_px=16 --set trainer.threads=1"
    )
    command = ["study", net, *LOOSE, *words.split(), "--out", str(tmp_path / "s")]
    workers = [ForkedVerb([*command, "--seed", str(seed)], Path.cwd()) for seed in range(2)]
    try:
        while len(at_work := running(journal)) < 2:
            polled = [worker.poll() for worker in workers]
            assert polled == [None, None], "ended before both were seen at work"
            time.sleep(0.05)
            os.kill(workers[0].pid, signal.SIGCONT)
            if len(running(journal)) == 2:
                os.kill(workers[0].pid, signal.SIGSTOP)  # what it runs now, it runs when it dies
        os.kill(workers[0].pid, signal.SIGKILL)
        said = workers[1].communicate(120)
        assert workers[1].returncode == 0, said
    finally:
        for worker in workers:
            worker.end()
    trials = trials_in(journal)
    assert len(finished_trials(trials)) == wanted, "none lost, none twice"
    (lost,) = (
        t for t in trials if t.state == TrialState.FAIL and WITHDRAWN_KEY not in t.system_attrs
    )
    assert lost.number in at_work
    (again,) = (t for t in trials if t.system_attrs.get(RETRY_HISTORY_KEY) == [lost.number])
    assert again.number in [t.number for t in finished_trials(trials)]
    assert lost.params.items() <= again.params.items(), "it may have died before all were proposed"


def trials_in(journal: Path) -> list[FrozenTrial]:
    """None where the file is not there, or has no study yet."""
    if (
        not journal.exists()
        or not (storage := JournalStorage(JournalFileBackend(str(journal)))).get_all_studies()
    ):
        return []
    return optuna.load_study(study_name=None, storage=storage).trials


def running(journal: Path) -> list[int]:
    return [t.number for t in trials_in(journal) if t.state == TrialState.RUNNING]
