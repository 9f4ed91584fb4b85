"""A plan names its chip, not the chip's folder: `export` takes no other chip of that name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import NET, called, refused

from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.files.package_data import package_data
from nnstretch.files.plan_yaml import read_predicted_plan
from nnstretch.predict import load_soc
from nnstretch.predict.load_soc import soc_sha256
from nnstretch.stretch.lowering.lower import lower

SEARCH = ("search", "net.py:make", "--width-steps", "3", "--out", "plan.yaml")
STUDY = ("study", "net.py:make", "--trials", "1", "--warm", "1", "--out", ".")
PLANS = {SEARCH: "plan.yaml", STUDY: "best.yaml"}
"""What each verb leaves."""


@pytest.fixture(autouse=True)
def in_folder_with_chips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a network and two chips that are slower than any that ships."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    for name in ("mi9", "phone"):
        chip = Path("chips") / name
        shutil.copytree(package_data("latency_predictors") / "mi9", chip)
        soc = json.loads((chip / "soc.json").read_text())
        (chip / "soc.json").write_text(json.dumps(soc | {"name": name}))
        for file in (chip / f"{processor['name']}.json" for processor in soc["processors"]):
            predictor = json.loads(file.read_text())
            predictor["rates"]["launch_us"] += 1000
            file.write_text(json.dumps(predictor))


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Return what a verb that succeeds says as JSON."""
    capsys.readouterr()
    status, out, err = called(capsys, *argv, "--json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chip", "said"),
    [
        (
            "mi9",
            "SoC mi9, plan {}, its predicted times are of a chip of that name with other files,"
            " give --soc mi9 for this one, or --soc with the folder of the other",
        ),
        (
            "phone",
            "unknown SoC 'phone', plan {}, it names its chip, but not where that is, give --soc"
            " with the chip's folder",
        ),
    ],
)
@pytest.mark.parametrize("verb", [SEARCH, STUDY])
def test_a_plan_is_priced_on_its_own_chip_or_not_at_all(
    verb: tuple[str, ...], chip: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own, plan = f"chips/{chip}", PLANS[verb]
    answer(capsys, *verb, "--soc", own)
    export = ("export", plan, "--out", "net.nns")
    assert refused(capsys, *export) == f"nnstretch: {said.format(plan)}"
    assert not Path("net.nns").exists()
    predicted_ms = {}
    for soc in (own, "mi9"):
        predicted_ms[soc] = answer(capsys, *export, "--soc", soc)["predicted_ms"]
        again = answer(capsys, "predict", plan, "--soc", soc)
        assert predicted_ms[soc] == pytest.approx(again["plan_latency_ms"])
    assert predicted_ms[own] > 2 * predicted_ms["mi9"]


@pytest.mark.slow
def test_a_simulation_prices_a_plan_on_the_chip_of_the_folder_it_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone_ms = {}
    answer(capsys, *SEARCH, "--soc", "mi9")
    for soc in ("chips/phone", "chips/mi9", "mi9"):
        app = "{name: n, model: plan.yaml, arrivals: {period_ms: 900}, instances: 1}"
        Path("w.yaml").write_text(f"soc: {soc}\npolicy: eft\napplications:\n- {app}\n")
        alone_ms[soc] = answer(capsys, "simulate", "w.yaml")["apps"][0]["alone_ms"]
    assert alone_ms["chips/phone"] == alone_ms["chips/mi9"] > 2 * alone_ms["mi9"]


@pytest.mark.slow
def test_a_study_leaves_the_trial_of_its_best_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *STUDY, "--soc", "chips/phone")
    subject = load_model_argument("best.yaml")
    plan, predicted = read_predicted_plan("best.yaml")
    assert predicted is not None
    remembered = predicted.trial(plan, subject.graph, soc_sha256("chips/phone"))
    assert remembered is not None
    assert remembered.latency_us / 1000 == found["best"][0]["latency_ms"]
    soc = load_soc("chips/phone")
    computed = replace(subject, predicted=None).estimate(lower(subject.graph, plan), soc)
    assert remembered.alternatives == computed.alternatives
    (artifact,) = (p for p in Path("artifacts").iterdir() if b"segments:" in p.read_bytes())
    assert artifact.read_text() == Path("best.yaml").read_text()


@pytest.mark.slow
def test_plans_without_a_trial_are_priced_by_the_name_of_their_chip(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Studies of before left none, nor do those whose kernels were never measured."""
    answer(capsys, *STUDY, "--soc", "mi9", "--fallback", "nearest")
    assert "predicted" not in Path("best.yaml").read_text()
    found = answer(capsys, "export", "best.yaml", "--out", "net.nns")
    shipped = answer(capsys, "predict", "best.yaml", "--soc", "mi9")
    assert found["predicted_ms"] == pytest.approx(shipped["plan_latency_ms"])
