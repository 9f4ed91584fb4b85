"""Options that scripts of users rely on: none is renamed, on any verb."""

from __future__ import annotations

import pytest

from nnstretch.cli import parser_of

OPTIONS = {
    "inspect": "--input",
    "import": "--out",
    "predict": "--soc --processors --ops",
    "search": (
        "--soc --processors --top --alpha --beta --min-depth --min-width --min-macs --max-macs"
        " --min-params --out"
    ),
    "study": "--soc --processors --trials --storage --name --objective",
    "train": "--plan --resume --print_config",
    "export": "--weights --format --int8 --calibration --out",
    "run": (
        "--soc --mode --clock --repeat --requests --input --output --trace --fail --busy --backend"
    ),
    "profile": "--out --backend --budget-s --processors",
    "partition": "--soc --stages --out",
    "simulate": "--soc --policy --seed --trace --log",
    "simulate sweep": "--out --workers --dask",
    "serve": "--soc --policy --host --port --socket --record",
    "schedule": "--policy --policies --processors",
    "accelerate": (
        "--accelerator --batch --policy --per-cluster --overlap --dtype --schedule --out --trace"
        " --check --explain --sweep --assume --budget-s"
    ),
    "report": "--out",
}


@pytest.mark.parametrize("verb", OPTIONS)
def test_a_verb_keeps_its_options(verb: str) -> None:
    known = parser_of(verb)._option_string_actions
    assert {*OPTIONS[verb].split(), "--json"} <= known.keys()
