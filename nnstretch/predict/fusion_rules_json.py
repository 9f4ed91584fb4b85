"""Fusion rules of one processor as JSON: `"mobile"`, or an object with its pairs spelt
`conv+relu`.
"""

from __future__ import annotations

from typing import Any

from nnstretch.errors import BrokenFile
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.predict.json_fields import flag, integer, require_keys, strings

PAIRS = 10_000
NAMED = {"mobile": MOBILE_FUSION}


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


def parse_rules(data: Any, where: str) -> FusionRules:
    """Parse fusion rules. Raises BrokenFile."""
    if isinstance(data, str) and data in NAMED:
        return NAMED[data]
    if isinstance(data, str):
        raise BrokenFile(
            f"field 'fusion' is {data!r}, {where}, known are {', '.join(NAMED)} and objects with"
            " pairs"
        )
    where = f"{where} fusion"
    data = require_keys(data, ("pairs", "after_activation", "copies_padding", "blocked"), where)
    pairs = [tuple(string.split("+")) for string in strings(data, "pairs", where, PAIRS)]
    if odd := [pair for pair in pairs if len(pair) != 2 or not all(pair)]:
        raise BrokenFile(
            f"field 'pairs' holds {'+'.join(odd[0])!r}, {where}, needed is KIND+FOLLOWER"
        )
    blocked = (
        None
        if data["blocked"] is None
        else parse_blocked_layout(data["blocked"], f"{where} blocked")
    )
    joins = frozenset((kind, follower) for kind, follower in pairs)
    return FusionRules(
        joins, flag(data, "after_activation", where), blocked, flag(data, "copies_padding", where)
    )


def parse_blocked_layout(data: Any, where: str) -> ChannelBlockedLayout:
    """Parse a blocked layout. Raises BrokenFile."""
    data = require_keys(data, ("block", "align", "ops"), where)
    return ChannelBlockedLayout(
        integer(data, "block", where, 1),
        integer(data, "align", where, 1),
        frozenset(strings(data, "ops", where)),
    )
