"""Task: one sub-graph for one input, and what it needs first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")

WorkKey = str | tuple[str, str]
"""What a task computes: a sub-graph, with its plan before it where there are several plans."""
TaskTimes = Mapping[tuple[WorkKey, str], float]
"""Microseconds by (what is computed, processor)."""


def filled_quickly(frozen: type[T]) -> type[T]:
    """Give a frozen dataclass with slots an `__init__` that takes a third of the time.

    Its own calls object.__setattr__ for every field. This one lets the object be of a class that is
    not frozen while its fields are set.
    """
    frozen.__init__ = _filling(  # type: ignore[method-assign]
        frozen, "__init__", "self, ", "become(self, '__class__', open)", "self.__class__ = frozen"
    )
    return frozen


def quick_maker(frozen: type[T]) -> Callable[..., T]:
    """Return a function that makes objects of a frozen dataclass with slots.

    It takes the arguments of the class, in half the time of a `filled_quickly` one: for loops that
    make millions of objects.
    """
    make: Callable[..., T] = _filling(
        frozen, "make", "", "self = open()", "self.__class__ = frozen\n    return self"
    )
    return make


def _filling(frozen: type, name: str, first: str, before: str, after: str) -> Any:
    """Return a function that sets all fields of an object, between two lines of code."""
    kept: Any = frozen.__init__  # type: ignore[misc]
    names = [field.name for field in fields(frozen)]
    scope: dict[str, Any] = {
        "frozen": frozen,
        "open": type(frozen.__name__, (), {"__slots__": tuple(names)}),
        "become": object.__setattr__,
    }
    sets = [f"self.{field} = {field}" for field in names]
    body = "\n    ".join([before, *sets, after])
    exec(f"def {name}({first}{', '.join(names)}):\n    {body}", scope)
    filling = scope[name]
    filling.__defaults__, filling.__annotations__ = kept.__defaults__, kept.__annotations__
    filling.__qualname__, filling.__module__ = kept.__qualname__, kept.__module__
    return filling


@filled_quickly
@dataclass(frozen=True, slots=True)
class Task:
    """One sub-graph for one input, and what it needs first."""

    name: str
    """Unique among the tasks of a schedule; for `needs` and messages, nothing is read out of it."""
    subgraph: str
    needs: frozenset[str] = frozenset()
    """Names of the tasks that must end before it starts."""
    processor: str | None = None
    """Where its plan placed it; None leaves the choice to the policy."""
    request: int = 0
    """Number of the input that it is part of."""
    plan: str = ""
    """Plan that it is part of, where there are several; else empty."""
    priority: int = 0
    """Of several that wait, the greater goes first under a policy of priority classes."""
    deadline_us: float = inf
    """When its request has to have ended."""

    @property
    def work(self) -> WorkKey:
        """Return the key of its costs."""
        return (self.plan, self.subgraph) if self.plan else self.subgraph


def work_key(subgraph: str, plan: str = "") -> WorkKey:
    """Return the key of a sub-graph's costs."""
    return (plan, subgraph) if plan else subgraph


def task_name(subgraph: str, request: int, plan: str = "") -> str:
    """Return the name of a task: `SUBGRAPH#REQUEST`, its plan before it where there are several."""
    return f"{plan}/{subgraph}#{request}" if plan else f"{subgraph}#{request}"
