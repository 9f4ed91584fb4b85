"""`nnstretch search` as a person calls it.

Flags, views, fronts and pictures, and what an interrupt leaves.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli.test_cli import NET, called, refused
from rich.console import Console

from nnstretch.cli import main
from nnstretch.cli.progress import progress, progress_stages
from nnstretch.cli.search import search as search_verb
from nnstretch.cli.search import show as search_tables
from nnstretch.cli.search.arguments import measures_of
from nnstretch.files.plan_yaml import read_plan
from nnstretch.predict import load_soc
from nnstretch.predict.save_soc import save_soc
from nnstretch.report.charts.pareto_chart import ParetoMark, ParetoPanel, front_picture
from nnstretch.stretch.search import search as optimum
from nnstretch.stretch.search.pareto import limit_ratios, undominated_points

COMMON = ("--soc", "mi9", "--width-steps", "3")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("search")
    (folder / "net.py").write_text(NET)
    return f"{folder}/net.py:make"


@pytest.fixture
def searched(capsys: pytest.CaptureFixture[str], model: str) -> Callable[..., dict[str, Any]]:
    def run(*argv: str, status: int = 0) -> dict[str, Any]:
        found, out, err = called(capsys, "search", model, *COMMON, "--json", *argv)
        assert found == status, err
        return json.loads(out)

    return run


def shown(result: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=160)
    search_tables.show(result, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_contract_and_what_is_proven(searched: Callable[..., dict[str, Any]]) -> None:
    found = searched("--processors", "cpu,gpu,dsp", "--top", "2")
    assert found["optimal"]
    assert not found["interrupted"]
    assert found["gap"] == pytest.approx(0)
    assert {s["merge"] for plan in found["plans"] for s in plan["segments"]} <= {
        "concat",
        "project",
    }
    best, own = found["plans"][0], found["original"]["latency_ms"]
    rates = sum(min(own.values()) / ms for ms in own.values())
    assert best["rates_limit"] == pytest.approx(rates / (best["macs"] / found["original"]["macs"]))
    assert best["rates_share"] == pytest.approx(best["speedup_vs_fastest"] / best["rates_limit"])
    text = shown(found)
    assert "proven optimal" in text
    assert (
        "cpu+gpu+dsp all worked all the time, each at its rate for the original:"
        f" {best['rates_limit']:.2f}x" in text
    )
    assert all(column in text for column in ("vs fastest alone", "vs equal MACs"))


@pytest.mark.slow
def test_a_gap_is_told_rounded_up(searched: Callable[..., dict[str, Any]]) -> None:
    found = searched() | {"optimal": False, "gap": 0.01201}
    assert "nothing can be more than 1.3% faster (proven)" in shown(found)
    assert "nothing proven" in shown(found | {"gap": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["concat", "project"])
def test_one_kind_of_merge(searched: Callable[..., dict[str, Any]], merge: str) -> None:
    found = searched("--merge", merge)
    assert (
        searched("--merge", "both")["plans"][0]["latency_ms"]
        <= found["plans"][0]["latency_ms"] + 1e-9
    )
    assert {s["merge"] for s in found["plans"][0]["segments"] if len(s["branches"]) > 1} <= {merge}
    assert {e["merge"] for e in searched("--merge", merge, "--explain", "stage1")["explained"]} == {
        merge
    }


@pytest.mark.slow
def test_explaining_a_cut(
    searched: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str], model: str
) -> None:
    entries = searched("--explain", "stage1")["explained"]
    assert {(e["start"], e["merge"]) for e in entries} == {
        (s, m) for s in ("input", "stem", "stage1.0", "stage1.1") for m in ("concat", "project")
    }
    for entry in entries:
        assert entry["line"].startswith(f"{entry['start']} -> stage1 on cpu+dsp")
        if entry["rule"] == "cost_amortised":
            assert entry["demand"] > entry["limit"]
            assert f"needs {round(entry['demand'], 1):.10g} us" in entry["line"]
    pool = searched("--explain", "pool")
    assert [e["rule"] for e in pool["explained"]] == ["no_meeting_point"]
    assert pool["explained"][0]["line"] in shown(pool)
    line = refused(capsys, "search", model, *COMMON, "--explain", "nowhere")
    assert "'nowhere'" in line
    assert "stage1.0, stage1.1, stage1" in line


@pytest.mark.slow
def test_sensitivity_has_a_row_for_every_pair(searched: Callable[..., dict[str, Any]]) -> None:
    found = searched("--sensitivity")
    rows = {(r["alpha"], r["beta"]): r for r in found["sensitivity"]}
    assert len(rows) == 12
    assert rows[0.5, 0.8]["latency_ms"] == pytest.approx(found["plans"][0]["latency_ms"])
    for (alpha, beta), row in rows.items():
        looser = [other for (a, b), other in rows.items() if a >= alpha and b >= beta]
        assert all(other["refused"] <= row["refused"] for other in looser)
        assert all(
            other["latency_ms"] <= row["latency_ms"] * (1 + 1e-9)
            for other in looser
            if other["optimal"]
        )
    assert "what the limits change" in shown(found)


@pytest.mark.slow
def test_a_front_is_drawn_and_undominated(
    searched: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    picture = tmp_path / "front.svg"
    found = searched("--pareto", "macs", "--pareto-steps", "3", "--picture", str(picture))
    (front,) = found["pareto"]
    points = front["points"]
    assert len(points) + len(front["without"]) <= 3
    for before, after in pairwise(points):
        assert before["latency_ms"] <= after["latency_ms"]
        assert before["macs_ratio"] < after["macs_ratio"]
    for point in points:
        assert point["macs_ratio"] >= point["asked"] * (1 - 1e-9)
        assert point["weight_bytes_total"] == sum(point["weight_bytes"].values())
        assert point["weight_bytes_total"] == pytest.approx(
            point["params_ratio"] * found["original"]["params"]
        )  # int8
        assert "energy_mj" not in point
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"predicted latency, ms", "single branch of equal MACs", "original on cpu"} <= texts
    text = shown(found)
    assert "latency against MACs" in text
    assert "no column for energy" in text


@pytest.mark.slow
def test_energy_is_a_column_where_the_chip_knows_its_power(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    soc = load_soc("mi9")
    watts = {"cpu": 3.5, "gpu": 1.5, "dsp": 0.75}
    save_soc(
        replace(soc, processors=tuple(replace(p, power_w=watts[p.name]) for p in soc.processors)),
        tmp_path / "chip",
    )
    flags = (
        "--soc",
        str(tmp_path / "chip"),
        "--width-steps",
        "3",
        "--json",
        "--pareto",
        "macs",
        "--pareto-steps",
        "2",
    )
    _, out, _ = called(capsys, "search", model, *flags)
    found = json.loads(out)
    (front,) = found["pareto"]
    for point in front["points"]:
        (tmp_path / "plan.yaml").write_text(point["plan"])
        app = "{name: a, model: plan.yaml, placement: kept, arrivals: {times_ms: [0]}}"
        (tmp_path / "once.yaml").write_text(f"policy: met\napplications:\n- {app}\n")
        once = called(capsys, "simulate", str(tmp_path / "once.yaml"), "--json", *flags[:2])
        assert point["energy_mj"] == pytest.approx(json.loads(once[1])["energy_mj"])
    assert "mJ" in shown(found)


def test_views_that_cannot_be_are_refused(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    assert "--pareto" in refused(
        capsys, "search", model, *COMMON, "--picture", str(tmp_path / "a.svg")
    )
    assert "end in .svg" in refused(
        capsys, "search", model, *COMMON, "--pareto", "macs", "--picture", str(tmp_path / "a.png")
    )
    assert "--pareto-steps is 1" in refused(
        capsys, "search", model, *COMMON, "--pareto", "macs", "--pareto-steps", "1"
    )
    assert "--pareto-steps 3 without --pareto" in refused(
        capsys, "search", model, *COMMON, "--pareto-steps", "3"
    )
    same = str(tmp_path / "a.svg")
    assert "is written twice" in refused(
        capsys, "search", model, *COMMON, "--pareto", "macs", "--picture", same, "--out", same
    )
    assert measures_of("params,macs,params") == ("params", "macs")
    with pytest.raises(SystemExit, match="2"):
        main(["search", model, *COMMON, "--pareto", "energy"])
    assert "'energy' is no measure" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_search_keeps_the_best_so_far(
    searched: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, out = optimum.search, tmp_path / "best.yaml"
    monkeypatch.setattr(
        optimum, "search", lambda *a, **k: replace(real(*a, **k), interrupted=True, optimal=False)
    )
    found = searched("--out", str(out), "--sensitivity", "--pareto", "macs", status=130)
    assert found["interrupted"]
    assert found["pareto"] == []
    assert "sensitivity" not in found
    assert read_plan(out).segments
    assert "interrupted: this is the best so far" in shown(found)


@pytest.mark.slow
def test_an_interrupted_front_keeps_its_points(
    searched: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = optimum.search, []

    def third(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(optimum, "search", third)
    found = searched("--pareto", "macs,params", "--pareto-steps", "4", status=130)
    assert [front["interrupted"] for front in found["pareto"]] == [True]
    assert len(found["pareto"][0]["points"]) == 1


def test_shares_and_dominance() -> None:
    assert limit_ratios(8) == (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    made = [
        FakePoint(*p) for p in ((3.0, 10), (2.0, 10), (2.0, 12), (5.0, 11), (6.0, 13), (6.0, 13))
    ]
    kept = undominated_points(made, "macs")  # type: ignore[arg-type]
    assert [(p.trial.latency_us, p.measured("macs")) for p in kept] == [(2.0, 12), (6.0, 13)]


class FakePoint:
    def __init__(self, latency_us: float, work: int) -> None:
        self.trial, self.work = type("Trial", (), {"latency_us": latency_us}), work

    def measured(self, measure: str) -> int:
        return self.work


def test_a_picture_of_one_point_and_of_unproven_ones() -> None:
    panel = ParetoPanel(
        "net <b>", "MACs over 1.8 G", "cpu", 10.0, (ParetoMark(1.0, 8.0, 10.0, False),)
    )
    text = front_picture((panel, panel))
    ElementTree.fromstring(text)
    assert "not proven" in text
    assert "<b>" not in text
    assert not re.search(r"nan|inf\b", text)


def test_both_kinds_of_progress_tell_one_bar() -> None:
    with progress("exporting") as tick:
        tick(1, 2)
        tick(2, 2, "segment")
    with progress_stages(ticking=True) as tell:
        tell("pricing", 0, 0)


def test_a_time_limit_ends_the_search_with_a_plan(
    searched: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "timed.yaml"
    result = searched("--time-limit", "1e-9", "--out", str(out))
    assert result["out_of_time"]
    assert "before the first plan was searched: this is the original on cpu" in shown(result)
    assert read_plan(out).segments
    for wrong in ("0", "-1", "soon"):
        with pytest.raises(SystemExit):
            main(["search", "net.py:make", *COMMON, "--time-limit", wrong])
    for wrong in ("nan", "inf"):
        assert main(["search", "net.py:make", *COMMON, "--time-limit", wrong]) == 1


def test_an_interrupt_before_there_is_a_plan_says_so(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search_verb, "search_request", stopped)
    status, _, err = called(capsys, "search", model, *COMMON)
    assert status == 130
    assert "interrupted, there is no plan yet" in err


def test_a_network_that_multiplies_nothing_is_searched_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.ReLU(), nn.LayerNorm(8))\n"
    )
    tokens = ("--input", "1,5:int64", "--fallback", "nearest", "--soc", "mi9")
    code, out, err = called(capsys, "search", f"{tmp_path}/net.py:make", *tokens)
    assert code == 0, err
    assert "│ -" in out


def test_a_network_that_takes_no_time_is_split_and_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soc = tmp_path / "soc"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "accelerator" / "phone", soc)
    described = (soc / "soc.json").read_text()
    free = re.sub(r'"(fixed_us|us_per_kib)": [0-9.]+', r'"\1": 0.0', described)
    (soc / "soc.json").write_text(free)
    (tmp_path / "views.py").write_text(
        "from torch import nn\n\ndef make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Flatten())\n"
    )
    asked = (f"{tmp_path}/views.py:make", "--input", "1,3,4,4", "--soc", str(soc))
    status, out, err = called(capsys, "partition", *asked, "--stages", "2", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert (result["bottleneck_ms"], result["balance"]) == (0, 1)
    for ratio in ("throughput_per_s", "speedup_vs_fastest", "share_of_ideal"):
        assert result[ratio] is None
    assert called(capsys, "partition", *asked, "--stages", "2")[0] == 0
    status, out, err = called(capsys, "search", *asked)
    assert (status, out, err.count("\n")) == (1, "", 1), err
    assert "it takes no time on cpu of phone, so no branches are faster" in err
