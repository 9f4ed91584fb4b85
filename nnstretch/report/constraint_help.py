"""One sentence for each kind of constraint, recognized by a word in its name."""

from __future__ import annotations

_MEANINGS = (
    (
        "amorti",
        "Meeting costs more than the share alpha of what the original layers between two meeting"
        " points take.",
    ),
    (
        "straggl",
        "A branch takes longer than beta times the original segment on the fastest processor.",
    ),
    ("main", "The largest branch keeps too small a share of the original segment's MACs."),
    ("depth", "A branch is shallower than the smallest depth ratio allowed."),
    ("width", "A branch is narrower than the smallest width ratio allowed."),
    ("memory", "A processor would have to hold more than its memory."),
    ("param", "The whole network has fewer or more parameters than allowed."),
    ("min_macs", "The network does less work than the least allowed, so it could lose accuracy."),
    ("max_macs", "The network does more work than the most allowed."),
    ("max_fork", "Branches run apart over more of the original's MACs than allowed."),
    ("meeting", "Branches meet less often than the least allowed."),
    ("macs", "The branches together keep too small or too large a share of the original MACs."),
    (
        "capacity",
        "Branches keep too little of the original's capacity: depth, width or MACs below their"
        " bounds.",
    ),
    ("unsupported", "A processor has no prediction for an operator of the branch."),
    (
        "processor",
        "Two branches of a segment would share one processor and only run one after the other.",
    ),
)


def explain_constraint(constraint: str) -> str:
    """Return one sentence on what a constraint protects."""
    name = constraint.lower().replace("-", "_").replace(" ", "_")
    meanings = (meaning for word, meaning in _MEANINGS if word in name)
    return next(meanings, "A constraint of the user's own.")
