"""`nnstretch search` with limits on how long branches run apart and how often they meet.

And what it refuses by name, fronts of meeting points, a gap to stop at, every plan a file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import NET, called, refused
from cli.test_search_cli import COMMON, shown

from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.files.package_data import package_data
from nnstretch.files.plan_yaml import read_plan
from nnstretch.stretch.lowering.lower import lower

Searched = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("forks")
    (folder / "net.py").write_text(NET)
    return f"{folder}/net.py:make"


@pytest.fixture
def searched(capsys: pytest.CaptureFixture[str], model: str) -> Searched:
    def run(*flags: str) -> dict[str, Any]:
        status, out, err = called(capsys, "search", model, *COMMON, "--json", *flags)
        assert status == 0, err
        return dict(json.loads(out))

    return run


@pytest.mark.slow
def test_forks_are_short_branches_meet_often_and_every_plan_is_a_file(
    searched: Searched, capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    folder = tmp_path / "plans"
    asked = ("--max-fork", "0.5x", "--min-meetings", "2", "--alpha", "2", "--beta", "1.5")
    found = searched(*asked, "--top", "2", "--out-dir", str(folder))
    network_macs = found["original"]["macs"]
    assert found["limits"]["max_fork"] == 0.5
    for number, plan in enumerate(found["plans"], 1):
        assert plan["meetings"] >= 2
        written = read_plan(folder / f"plan{number}.yaml")
        assert [s.end for s in written.segments] == [s["end"] for s in plan["segments"]]
    analysis = load_model_argument(model).analysis
    for plan in map(read_plan, folder.iterdir()):
        for part in lower(analysis, plan).segments:
            assert not part.segment.branched or part.original.macs <= 0.5 * network_macs
    assert len(list(folder.iterdir())) == len(found["plans"])
    line = refused(capsys, "search", model, *COMMON, *asked, "--out-dir", str(folder))
    assert "it holds plan1.yaml" in line
    searched(*asked, "--out-dir", str(folder), "--overwrite")
    assert [path.name for path in folder.iterdir()] == ["plan1.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--max-fork", "0"), "--max-fork is 0, command line, no work fits"),
        (("--min-meetings", "99"), "make has 6 cuts where branches may meet"),
        (("--min-meetings", "1", "--processors", "cpu"), "nothing branches on cpu alone"),
        (("--gap", "-0.1"), "gap is -0.1, search settings"),
        (("--min-params", "2x", "--max-params", "1x"), "parameters cannot be at least"),
        (("--max-fork", "0.01x", "--min-meetings", "1"), "meets 1 times, the limits leave 0"),
        (("--min-macs", "1.02x", "--max-params", "0.4x"), "contradicting: max_params"),
    ],
)
def test_what_no_plan_can_keep_is_named(
    capsys: pytest.CaptureFixture[str], model: str, flags: tuple[str, ...], line: str
) -> None:
    assert line in refused(capsys, "search", model, *COMMON, *flags)


@pytest.mark.slow
def test_a_front_of_meeting_points(searched: Searched, tmp_path: Path) -> None:
    picture = tmp_path / "meetings.svg"
    flags = ("--pareto", "meetings", "--pareto-steps", "3", "--picture", str(picture))
    found = searched(*flags, "--alpha", "2", "--beta", "1.5")
    (front,) = found["pareto"]
    assert all(point["meetings"] >= point["asked"] for point in front["points"])
    counts = [point["meetings"] for point in front["points"]]
    assert counts == sorted(set(counts))
    assert "meeting points of the plan" in picture.read_text()
    assert "latency against meeting points" in shown(found)


@pytest.mark.slow
def test_a_gap_is_kept_to(searched: Searched) -> None:
    best, near = searched(), searched("--gap", "0.3")
    assert near["gap"] <= 0.3
    assert near["plans"][0]["latency_ms"] * 0.7 <= best["plans"][0]["latency_ms"]


STAGES = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.b = nn.Conv2d(width, width, 3, padding=1, bias=False)
    def forward(self, x):
        return torch.relu(x + self.b(torch.relu(self.a(x))))

def stage(before, width, depth):
    down = nn.Conv2d(before, width, 3, 2, 1, bias=False)
    return nn.Sequential(down, nn.ReLU(), *(Block(width) for _ in range(depth)))

def make():
    stages = stage(3, 48, 2), stage(48, 96, 3), stage(96, 192, 2)
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10))
"""


@pytest.mark.slow
def test_plans_under_a_gap_stand_by_latency(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(STAGES)
    best, plans = tmp_path / "best.yaml", tmp_path / "plans"
    flags = ("--input", "1,3,128,128", "--top", "2", "--gap", "0.1", "--out-dir", str(plans))
    argv = ("search", f"{tmp_path}/net.py:make", *COMMON, "--json", *flags, "--out", str(best))
    status, out, err = called(capsys, *argv)
    assert status == 0, err
    latencies_ms = [plan["latency_ms"] for plan in json.loads(out)["plans"]]
    assert len(latencies_ms) == 2
    assert latencies_ms == sorted(latencies_ms)
    assert best.read_text() == (plans / "plan1.yaml").read_text()


@pytest.mark.slow
def test_a_front_ends_where_a_limit_leaves_no_plan(searched: Searched) -> None:
    flags = ("--pareto", "params", "--pareto-steps", "3", "--max-params", "1.1x")
    (front,) = searched(*flags)["pareto"]
    assert front["without"] == [1.2]
    assert len(front["points"]) >= 1


def test_no_plan_takes_the_place_of_the_chip(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    chip = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "chip")
    before = (chip / "soc.json").read_bytes()
    argv = ["search", model, "--soc", str(chip), "--out", str(chip / "soc.json")]
    assert "it is the command's own input" in refused(capsys, *argv)
    assert (chip / "soc.json").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--out-dir", "plans", "--overwrite"), "plan1.yaml, it is a folder"),
        (("--pareto", "meetings", "--processors", "cpu"), "nothing branches on one processor"),
    ],
)
def test_what_cannot_be_written_or_drawn_is_refused_before_the_search(
    capsys: pytest.CaptureFixture[str],
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans" / "plan1.yaml").mkdir(parents=True)
    assert line in refused(capsys, "search", model, *COMMON, *flags)


@pytest.mark.parametrize("top", ["0", "-1"])
@pytest.mark.parametrize("soc", ["mi9", "examples/accelerator/phone"])
def test_fewer_than_one_plan_is_refused_also_on_described_accelerators(
    capsys: pytest.CaptureFixture[str], model: str, soc: str, top: str
) -> None:
    root = Path(__file__).parents[2]
    chip = str(root / soc) if "/" in soc else soc
    line = refused(capsys, "search", model, "--input", "1,3,32,32", "--soc", chip, "--top", top)
    assert f"--top is {top}, command line, it must be 1 or more" in line
