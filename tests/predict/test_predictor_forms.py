"""A form of predictor that the package lacks, entered in the two tables that the guide names."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.search_instances import NETWORK, chip

from nnstretch.errors import BrokenFile
from nnstretch.kernel import FusionRules, Kernel
from nnstretch.predict import load_soc, save_soc
from nnstretch.predict.fusion_rules_json import rules_of
from nnstretch.predict.load_soc import FORM_READERS
from nnstretch.predict.save_soc import FORM_WRITERS
from nnstretch.predictor import Estimate, Predictor
from nnstretch.soc import Soc
from nnstretch.stretch.search.search import search


@dataclass(frozen=True)
class TwoRates:
    """Nothing but what the protocol asks for, and two rates."""

    processor: str
    macs_per_us: float
    elements_per_us: float

    def estimate(self, kernel: Kernel, /) -> Estimate:
        moved = kernel.read_elements + kernel.write_elements + kernel.weight_elements
        latency_us = 2.0 + kernel.macs / self.macs_per_us + moved / self.elements_per_us
        return Estimate(latency_us, 0.2 * latency_us)


def write_two_rates(predictor: Predictor) -> tuple[dict[str, Any], float] | None:
    return (asdict(predictor), 0.2) if isinstance(predictor, TwoRates) else None


def read_two_rates(data: Any, folder: Path) -> tuple[Predictor, FusionRules]:
    rates = data["macs_per_us"], data["elements_per_us"]
    return TwoRates(data["processor"], *rates), rules_of(data["fusion"])


@pytest.fixture
def soc(monkeypatch: pytest.MonkeyPatch) -> Soc:
    monkeypatch.setitem(FORM_WRITERS, "two_rates", write_two_rates)
    monkeypatch.setitem(FORM_READERS, "two_rates", read_two_rates)
    predictors = {name: TwoRates(name, 5000.0, 800.0) for name in chip().predictors}
    return replace(chip(), predictors=predictors)


def test_it_is_the_same_after_a_round_through_its_file(soc: Soc, tmp_path: Path) -> None:
    save_soc(soc, tmp_path)
    assert load_soc(tmp_path) == soc
    before, after = (search(NETWORK, each, ("cpu", "dsp")) for each in (soc, load_soc(tmp_path)))
    assert after.plans == before.plans


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "processor 'cpu' with 'float16', .*cpu.json, the chip expects"),
        ({"dtype": None}, "processor 'cpu' with None, .*cpu.json, the chip expects"),
        ({"processor": "dsp"}, "processor 'dsp' with 'int8', .*cpu.json, the chip expects"),
        ({"form": "one_rate"}, "unknown form 'one_rate', .* learned, accelerator, two_rates"),
    ],
)
def test_a_file_that_is_of_another_chip_is_refused(
    soc: Soc, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    save_soc(soc, tmp_path)
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BrokenFile, match=message):
        load_soc(tmp_path)
