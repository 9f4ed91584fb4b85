"""A plan names its chip, not the chip's folder: it is priced on no other chip of that name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import NET, called

from nnstretch.files.package_data import package_data

SEARCH = ("search", "net.py:make", "--width-steps", "3", "--out", "plan.yaml")


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
