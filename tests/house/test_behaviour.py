"""Verbs answer as they did when the golden file was written.

Commands that train, export or run take two minutes: `python scripts/same_behaviour.py --check` has
them all.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import same_behaviour

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_inspect_predict_search_and_refusals_answer_as_before() -> None:
    golden = json.loads(same_behaviour.GOLDEN.read_text(encoding="utf-8"))
    assert golden.keys() == same_behaviour.COMMANDS.keys()
    names = [
        name
        for name in golden
        if name.startswith(("inspect", "import", "predict", "search", "refuse"))
    ]
    answers = same_behaviour.answers(ROOT, names)
    lines = []
    for name in names:
        lines += same_behaviour.differences(golden[name], answers[name], name, 1e-6)
    assert lines == []
