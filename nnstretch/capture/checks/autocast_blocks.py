"""Blocks under `torch.autocast`: a graph computes them in float32, and that is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nnstretch.capture.checks.source_lines import line_of_trace
from nnstretch.errors import name_first

WRAPPER = "wrap_with_autocast"


def autocast_notes(program: Any) -> tuple[str, ...]:
    """Return one note on the blocks of lower precision of an exported program; none without."""
    blocks = list(autocast_blocks(program.graph_module))
    if not blocks:
        return ()
    dtypes = ", ".join(sorted({dtype for dtype, _ in blocks}))
    places = list(dict.fromkeys(place for _, place in blocks))
    return (
        f"torch.autocast ({dtypes}) at {name_first(places)} is left out: captured is float32, so"
        " results differ from the module's by the rounding of its lower precision",
    )


def autocast_blocks(graph_module: Any) -> Iterator[tuple[str, str]]:
    """Yield type and line of every block that lowers precision, nested ones included."""
    for node in graph_module.graph.nodes:
        if node.op != "get_attr":
            continue
        nested = getattr(graph_module, str(node.target), None)
        if not hasattr(nested, "graph"):
            continue
        for call in node.users:
            if getattr(call.target, "_name", "") == WRAPPER and call.args[2]:
                yield str(call.args[1]).removeprefix("torch."), first_line(nested)
        yield from autocast_blocks(nested)


def first_line(graph_module: Any) -> str:
    """Return the line of the first operator of a block; `forward` where none is known."""
    for node in graph_module.graph.nodes:
        if line := line_of_trace(node.meta.get("stack_trace")):
            return line
    return "forward"
