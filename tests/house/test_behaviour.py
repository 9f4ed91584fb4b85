"""Verbs answer as they did when the golden file was written.

Commands that train, export or run take two minutes: `python scripts/same_behaviour.py --check` has
them all.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def same_behaviour() -> ModuleType:
    path = ROOT / "scripts" / "same_behaviour.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_inspect_predict_search_and_refusals_answer_as_before() -> None:
    script = same_behaviour()
    golden = json.loads(script.GOLDEN.read_text(encoding="utf-8"))
    assert golden.keys() == script.COMMANDS.keys()
    names = [
        name
        for name in golden
        if name.startswith(("inspect", "import", "predict", "search", "refuse"))
    ]
    answers = script.answers(ROOT, names)
    lines = []
    for name in names:
        lines += script.differences(golden[name], answers[name], name, 1e-6)
    assert lines == []
