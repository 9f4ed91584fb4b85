"""Tasks by name, where a test cares for nothing else of them."""

from __future__ import annotations

from nnstretch.task import Task


def named_task(name: str) -> Task:
    """`SUBGRAPH#REQUEST` as a task."""
    subgraph, _, request = name.partition("#")
    return Task(name, subgraph, request=int(request or 0))
