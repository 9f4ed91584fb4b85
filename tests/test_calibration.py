"""The shipped mi9 is what its script writes from the published data, and as accurate as its card says."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.places import shipped
from nnstretch.predict import load_soc, predict_ops

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data" / "nn_stretch"
FOLDER = shipped("latency_predictors") / "mi9"


def errors() -> dict[str, float]:
    with (DATA / "latency_mi9.csv").open() as file:
        measured = {row["config"]: float(row["latency_us"]) / 1000 for row in csv.DictReader(file)}
    predicted = predict_ops(DATA / "ops_mi9.csv", load_soc("mi9"))
    assert predicted.keys() == measured.keys()
    return {config: predicted[config] / measured[config] - 1 for config in measured}


def test_whole_networks_are_met_within_five_percent_on_average() -> None:
    found = errors()
    assert len(found) == 24
    assert sum(map(abs, found.values())) / len(found) <= 0.05
    assert max(abs(error) for config, error in found.items() if config != "EN-L4-CD") <= 0.10


def test_the_card_prints_the_errors_that_the_shipped_numbers_make() -> None:
    card = (FOLDER / "CARD.md").read_text()
    printed = dict(re.findall(r"^\| (\S+-[CGD]+) \| \d+ \| (\S+) \|", card, re.M))
    assert {config: f"{error:+.1%}" for config, error in errors().items()} == printed


def test_held_out_errors_keep_their_promise() -> None:
    card = (FOLDER / "CARD.md").read_text()
    rows = re.findall(r"^\| \S+-([CGD]+) \| \d+ \| \S+ \| (\S+)% \|", card, re.M)
    single = [abs(float(error)) for processors, error in rows if len(processors) == 1]
    branched = [abs(float(error)) for processors, error in rows if len(processors) > 1]
    assert (len(single), len(branched)) == (18, 6)
    assert sum(single) / 18 <= 10
    assert sum(branched) / 6 <= 15


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scipy")
    out = tmp_path_factory.mktemp("mi9")
    command = [sys.executable, str(ROOT / "scripts" / "calibrate_mi9.py"), "--data", str(DATA), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.mark.parametrize("name", ["soc.json", "cpu.json", "gpu.json", "dsp.json", "CARD.md"])
def test_the_script_writes_what_is_shipped(rewritten: Path, name: str) -> None:
    assert (rewritten / name).read_bytes() == (FOLDER / name).read_bytes()
