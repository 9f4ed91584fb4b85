"""Claims that a page is judged by: a value, a limit, and whether it is kept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.bench.markdown import markdown_table


@dataclass(frozen=True)
class JudgedClaim:
    """A number of ours against a limit that was set before it was known."""

    claim: str
    shown: str
    limit: str
    kept: bool

    def __str__(self) -> str:
        return f"{self.claim}, {self.shown}, limit {self.limit}"


def between(claim: str, value: float, low: float, high: float, digits: int = 2) -> JudgedClaim:
    """Return the claim that a value lies within two limits."""
    limit = f"{low:.{digits}f} to {high:.{digits}f}"
    return JudgedClaim(claim, f"{value:.{digits}f}", limit, low <= value <= high)


def judged_table(claims: Sequence[JudgedClaim]) -> list[str]:
    """Return a sentence and the table of claims."""
    kept = sum(claim.kept for claim in claims)
    lines = [[c.claim, c.shown, c.limit, "kept" if c.kept else "missed"] for c in claims]
    table = markdown_table(("claim", "value", "limit", "verdict"), lines)
    return [f"{kept} of {len(claims)} are kept.", "", *table]


def status_of(claims: Sequence[JudgedClaim]) -> int:
    """Name what is missed on standard error; return the exit status: 1 where anything is."""
    missed = [claim for claim in claims if not claim.kept]
    for claim in missed:
        print(f"missed: {claim}", file=sys.stderr)
    return int(bool(missed))


Section = tuple[list[str], list[JudgedClaim]]
"""Lines of a page, and what is judged of them."""
