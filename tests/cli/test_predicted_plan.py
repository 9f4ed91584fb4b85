"""A plan file that `search` writes remembers its trial; `export` computes only what is stale."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from cli.test_cli import NET, called

from nnstretch.bundle.bundle import read_bundle
from nnstretch.cli import main
from nnstretch.cli.loaded_model import load_model_argument
from nnstretch.errors import BadPlan
from nnstretch.files.package_data import package_data
from nnstretch.files.plan_yaml import plan_text, read_plan, read_predicted_plan
from nnstretch.predict import load_soc
from nnstretch.predict.load_soc import soc_sha256
from nnstretch.stretch.cost import cost_model
from nnstretch.stretch.lowering.lower import lower


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network and the plan that a search finds for it."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "net.py").write_text(NET)
    argv = ["--soc", "mi9", "--width-steps", "3", "--out", "plan.yaml"]
    with contextlib.chdir(folder):
        assert main(["search", "net.py:make", *argv]) == 0
    return folder


@pytest.fixture
def plan(searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the plan beside its network."""
    shutil.copytree(searched, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "plan.yaml"


def estimates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of plans that are estimated from now on is this list's length."""
    calls: list[int] = []
    estimate_plan = cost_model.estimate_plan

    def counted(*args: object) -> object:
        calls.append(1)
        return estimate_plan(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cost_model, "estimate_plan", counted)
    return calls


@pytest.mark.slow
def test_a_remembered_trial_is_the_one_that_would_be_computed(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, soc = load_model_argument(str(plan)), load_soc("mi9")
    assert subject.plan is not None
    lowered = lower(subject.graph, subject.plan)
    calls = estimates(monkeypatch)
    remembered = subject.estimate(lowered, soc)
    assert not calls
    plan.write_text(plan_text(subject.plan))
    computed = load_model_argument(str(plan)).estimate(lowered, soc)
    assert len(calls) == 1
    assert remembered == computed
    assert remembered.alternatives == computed.alternatives


@pytest.mark.slow
def test_a_bundle_is_the_same_with_and_without_the_section(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = estimates(monkeypatch)
    bare = tmp_path / "bare.yaml"
    bare.write_text(plan_text(read_plan(plan)))
    for path in (plan, bare):
        status, _, err = called(capsys, "export", str(path), "--out", f"{path}.nns")
        assert status == 0, err
    assert len(calls) == 1
    assert Path(f"{plan}.nns").read_bytes() == Path(f"{bare}.nns").read_bytes()
    assert "predicted" not in read_bundle(Path(f"{plan}.nns")).manifest.plan


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["plan", "network", "chip", "section"])
def test_a_stale_trial_is_not_used(plan: Path, changed: str) -> None:
    text = plan.read_text()
    sha256 = soc_sha256("mi9")
    if changed == "plan":
        plan.write_text(text.replace("processor: dsp", "processor: gpu"))
    if changed == "network":
        network = plan.with_name("net.py")
        network.write_text(NET.replace("nn.ReLU(", "nn.ReLU6("))
        assert network.read_text() != NET
    if changed == "chip":
        sha256 = soc_sha256("mi11")
    if changed == "section":
        head, _, tail = text.partition("predicted:")
        plan.write_text(head + "predicted:" + tail.replace("processor: dsp", "processor: gpu"))
    subject = load_model_argument(str(plan))
    assert subject.plan is not None
    assert subject.predicted is not None
    assert subject.predicted.trial(subject.plan, subject.graph, sha256) is None


def test_a_section_that_is_none_is_refused_by_its_path(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("sync_us:", "sync_ms:", 1))
    with pytest.raises(BadPlan, match=r"plan\.predicted\.segments\[0\]"):
        read_predicted_plan(plan)


@pytest.mark.slow
def test_what_speaks_against_a_plan_is_told_with_its_latency(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def doubts(soc: str = "mi9") -> list[str]:
        status, out, err = called(capsys, "predict", str(plan), "--soc", soc, "--json")
        assert status == 0, err
        return list(json.loads(out).get("doubts", []))

    assert doubts() == []
    chip = shutil.copytree(package_data("latency_predictors") / "mi9", plan.parent / "small")
    data = json.loads((chip / "soc.json").read_text())
    for processor in data["processors"]:
        processor["memory_bytes"] = 1000
    (chip / "soc.json").write_text(json.dumps(data))
    (memory,) = doubts(str(chip))
    assert memory.startswith("memory: processor cpu needs")
    plan.with_name("net.py").write_text(NET.replace("nn.ReLU(", "nn.ReLU6("))
    assert doubts() == ["plan or network have changed since the search"]


def test_a_plan_or_recipe_whose_network_is_not_in_this_folder_is_named(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = plan.parent
    (folder / "recipe.yaml").write_text("model: net.py:make\ndata: {name: digits}\n")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    train = ["train", "../recipe.yaml", "--out", "trained"]
    for words, holder in (
        (["predict", "../plan.yaml", "--soc", "mi9"], "plan ../plan.yaml"),
        (train, "recipe ../recipe.yaml"),
        ([*train, "--plan", "../plan.yaml"], "plan ../plan.yaml"),
    ):
        assert main(words) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"nnstretch: no model file net.py, {holder}")
        assert f"its path is taken from here, {folder / 'elsewhere'}" in told
