"""Chips without a published latency.

Derived by one script from mi9 and specifications, and marked so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.files.package_data import package_data
from nnstretch.predict import Roofline, known_socs, load_soc, predict_ops
from nnstretch.soc import Soc

ROOT = Path(__file__).parents[2]
OPS = ROOT / "tests" / "data" / "nn_stretch" / "ops_mi9.csv"
PROCESSORS = {"pixel6": ["cpu", "gpu"], "mi11": ["cpu", "gpu", "dsp"]}
FILES = [
    (name, file)
    for name, processors in PROCESSORS.items()
    for file in ("soc.json", "CARD.md", *(f"{p}.json" for p in processors))
]


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("derived")
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "calibration"), "derived", "--out", str(out)],
        check=True,
        capture_output=True,
    )
    return out


@pytest.mark.parametrize(("name", "file"), FILES)
def test_the_script_writes_what_is_shipped(rewritten: Path, name: str, file: str) -> None:
    assert (rewritten / name / file).read_bytes() == (
        package_data("latency_predictors") / name / file
    ).read_bytes()


@pytest.mark.parametrize("name", PROCESSORS)
def test_nothing_else_is_shipped_for_it(rewritten: Path, name: str) -> None:
    names = [
        sorted(path.name for path in folder.iterdir())
        for folder in (rewritten / name, package_data("latency_predictors") / name)
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("name", PROCESSORS)
def test_it_loads_and_says_that_it_is_not_calibrated(name: str) -> None:
    soc = load_soc(name)
    assert name in known_socs()
    assert [p.name for p in soc.processors] == PROCESSORS[name]
    assert not soc.calibrated
    assert "derived" in soc.provenance
    assert "no latency of it was ever published" in soc.provenance
    assert all(set(pair) <= set(PROCESSORS[name]) for pair in soc.contention)
    card = (package_data("latency_predictors") / name / "CARD.md").read_text()
    assert "Not calibrated" in card
    assert "assumption, not a" in card


def relative_errors(soc: Soc) -> dict[str, float]:
    return {
        name: one.relative_error
        for name, one in soc.predictors.items()
        if isinstance(one, Roofline)
    }


@pytest.mark.parametrize("name", PROCESSORS)
def test_its_error_is_far_above_that_of_the_measured_chip(name: str) -> None:
    measured, derived = relative_errors(load_soc("mi9")), relative_errors(load_soc(name))
    assert derived.keys() == set(PROCESSORS[name])
    assert all(
        error == pytest.approx(measured[processor] + 0.5, rel=1e-3)
        for processor, error in derived.items()
    )


def test_a_later_chip_is_faster_but_not_by_more_than_its_best_ratio() -> None:
    """Every term is scaled by a ratio between the clocks (1) and the GPU's arithmetic (1.915)."""
    measured = predict_ops(OPS, load_soc("mi9"))
    derived = predict_ops(OPS, load_soc("mi11"))
    assert derived.keys() == measured.keys()
    assert all(measured[config] / 1.92 < derived[config] < measured[config] for config in measured)
