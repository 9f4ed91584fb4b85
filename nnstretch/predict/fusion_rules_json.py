"""Fusion rules of one processor as JSON: `"mobile"`, or an object with pairs like `conv+relu`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from nnstretch.files.limits import Length, OneOf, Only, Range
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules

NAMED = {"mobile": MOBILE_FUSION}
Pair = Annotated[str, Only(re.compile(r"[^+]+\+[^+]+").fullmatch, "KIND+FOLLOWER")]
Channels = Annotated[int, Range(1, 1 << 53)]


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A blocked layout as the file spells it."""

    block: Channels
    align: Channels
    ops: Annotated[tuple[str, ...], Length()]


@dataclass(frozen=True, slots=True)
class FusionRow:
    """Fusion rules as the file spells them."""

    pairs: Annotated[tuple[Pair, ...], Length(0, 10_000)]
    after_activation: bool
    copies_padding: bool
    blocked: BlockedRow | None


NamedOrRow = Annotated[str, OneOf(tuple(NAMED))] | FusionRow


def rules_document(rules: FusionRules) -> Any:
    """Return fusion rules as JSON data."""
    for name, known in NAMED.items():
        if rules == known:
            return name
    blocked = rules.blocked
    return {
        "pairs": sorted(f"{kind}+{follower}" for kind, follower in rules.pairs),
        "after_activation": rules.after_activation,
        "copies_padding": rules.copies_padding,
        "blocked": (
            None
            if blocked is None
            else {"block": blocked.block, "align": blocked.align, "ops": sorted(blocked.ops)}
        ),
    }


def rules_of(row: str | FusionRow) -> FusionRules:
    """Return the fusion rules that a file names or spells out."""
    if isinstance(row, str):
        return NAMED[row]
    blocked = None
    if row.blocked is not None:
        ops = frozenset(row.blocked.ops)
        blocked = ChannelBlockedLayout(row.blocked.block, row.blocked.align, ops)
    split = [pair.split("+") for pair in row.pairs]
    pairs = frozenset((kind, follower) for kind, follower in split)
    return FusionRules(pairs, row.after_activation, blocked, row.copies_padding)
