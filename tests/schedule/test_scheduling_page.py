"""The policy that docs/scheduling.md shows does what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "scheduling.md"


def test_the_policy_in_ten_lines_runs() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted >= 6
    assert outcome.failed == 0
