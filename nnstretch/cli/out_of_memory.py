"""A verb that memory does not suffice for: one line instead of PyTorch's words."""

from __future__ import annotations

from nnstretch.errors import one_line, shorten_message

WORDS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
)
"""Of PyTorch's errors."""


def out_of_memory(error: Exception, verb: str) -> str | None:
    """Return the refusal of a verb that memory does not suffice for; None for another error."""
    said = str(error)
    if not isinstance(error, MemoryError) and not any(words in said for words in WORDS):
        return None
    reason = shorten_message(one_line(said)) if said else "no more could be had"
    return f"memory does not suffice, {verb}, {reason}"
