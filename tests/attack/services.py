"""Sessions, servers and pipelines in the hands of an odd caller: odd arguments, in any order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from attack.calls import ODD
from hypothesis import strategies as st
from support.bundles import branched_bundle, image
from support.pipeline_bundles import chain

from nnstretch.errors import NnstretchError
from nnstretch.run import Pipeline, Session
from nnstretch.run.server import Server
from nnstretch.schedule import Disturbances

LONGEST_S = 20.0
"""A wait for an answer that takes longer is a hang."""
LONGEST_REFUSAL = 2100
ITEM = np.ones((3, 3), np.float32)
MIXED = {"image": None, "": ITEM, 1: ITEM, "x0": ITEM}
ODD_HERE = (*ODD, MIXED, ITEM[:2], ITEM * np.nan, np.ma.masked_array(ITEM), [ITEM], iter([ITEM]))
Probe = Callable[[Any], np.ndarray]


@dataclass(frozen=True)
class Service:
    """A class of services, its sound arguments, and a sound use with a known answer."""

    make: Callable[..., Any]
    arguments: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    probe: Probe
    waits: frozenset[str] = frozenset()
    """Arguments of which some values mean to wait for ever, which is no finding."""


def run_pipeline(pipeline: Pipeline) -> Any:
    """Read what odd calls left, then run one item."""
    while pipeline.open_items:
        pipeline.get(LONGEST_S)
    return pipeline.run(ITEM, LONGEST_S)


def ask_twice(server: Server, inputs: np.ndarray) -> Any:
    """Ask for an answer twice; the second time the input is written on at once."""
    lent = inputs.copy()
    answers = [server.submit(inputs), server.submit(lent)]
    lent[:] = np.nan
    return [answer.result(LONGEST_S) for answer in answers]


def services() -> dict[str, Service]:
    """Return every service by name."""
    bundle, stages = branched_bundle(), chain(2)
    x = image(bundle)
    return {
        "Session": Service(
            Session,
            {"bundle": bundle, "soc": None, "mode": "spatial", "clock": "virtual"}
            | {"backend": None, "threads": 1, "plan": None},
            {"run": {"inputs": x, "raw": False}, "compute": {"values": {"image": x}}}
            | {"overlap": {"inputs": x}, "one_after_another": {}, "predicted": {}, "close": {}},
            lambda session: session.run(x),
        ),
        "Server": Service(
            Server,
            {"bundle": bundle, "processors": None, "capacity": 2, "emulated": False}
            | {"dilation": 1.0, "networks": None, "adaptive": None, "plan": None}
            | {"backend": None, "ended": None, "disturbances": Disturbances()},
            {"submit": {"inputs": x, "deadline_ms": None, "timeout_s": 1.0}}
            | {"close": {"drain": True}},
            lambda server: ask_twice(server, x),
        ),
        "Pipeline": Service(
            Pipeline,
            {"bundle": stages, "functions": None, "backend": None, "on_error": "continue"}
            | {"results": 4, "pace": None, "traced": 4, "bind": True},
            {"push": {"inputs": ITEM, "timeout_s": 0.2}, "get": {"timeout_s": 0.2}}
            | {"stream": {"items": [ITEM, ITEM], "in_flight": None}, "statistics": {}}
            | {"run": {"inputs": ITEM, "timeout_s": 1.0}, "trace": {}, "close": {"drain": True}}
            | {"parameters": {"group": "m0"}, "set_parameters": {"group": "m0", "values": {}}},
            run_pipeline,
            frozenset({"timeout_s"}),
        ),
    }


def service_case(
    data: st.DataObject, known: dict[str, Service]
) -> tuple[Callable[[], list[str]], str]:
    """Draw a service, odd or sound, and uses of it; return the case and what it is."""
    name = data.draw(st.sampled_from(sorted(known)))
    service = known[name]
    opened = dict(service.arguments)
    odd_one = data.draw(st.sampled_from(sorted(service.arguments))) if _seldom(data) else ""
    if odd_one:
        # What a caller's own function raises is logged, and no finding.
        values = [v for v in ODD_HERE if odd_one != "ended" or not callable(v)]
        opened[odd_one] = data.draw(st.sampled_from(values))
    uses = [_use(data, service) for _ in range(data.draw(st.integers(1, 4)))]

    def run() -> list[str]:
        return run_case(service, opened, uses, sound=not odd_one)

    said = [
        f"{method}({', '.join(f'{k}={v!r:.60}' for k, v in odd.items())})"
        for method, _, odd in uses
    ]
    return run, f"{name}({odd_one}={opened.get(odd_one)!r:.80}): {'; '.join(said)}"


def _seldom(data: st.DataObject) -> bool:
    return bool(data.draw(st.integers(0, 3)) == 0)


Use = tuple[str, dict[str, Any], dict[str, Any]]
"""A method, its arguments, and those of them that are odd."""


def _use(data: st.DataObject, service: Service) -> Use:
    method = data.draw(st.sampled_from(sorted(service.methods)))
    arguments, odd = dict(service.methods[method]), {}
    if arguments and data.draw(st.booleans()):
        changed = data.draw(st.sampled_from(sorted(arguments)))
        values = [v for v in ODD_HERE if changed not in service.waits or not _waits(v)]
        odd[changed] = data.draw(st.sampled_from(values))
    return method, {**arguments, **odd}, odd


def _waits(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and value > LONGEST_S)


def run_case(service: Service, opened: dict[str, Any], uses: list[Use], sound: bool) -> list[str]:
    """Open a service, use it, and see that it still answers as before; return what is wrong."""
    try:
        instance = service.make(**opened)
    except NnstretchError as refusal:
        return _long(refusal)
    faults: list[str] = []
    closed = False
    try:
        for method, arguments, _ in uses:
            closed = closed or method == "close"
            try:
                _wait_for(getattr(instance, method)(**arguments))
            except NnstretchError as refusal:
                faults += _long(refusal)
        if sound and not closed:
            faults += _probe(service, opened, instance)
    finally:
        instance.close()
    return faults


def _wait_for(result: Any) -> None:
    """Take what a use gives: an answer to come, or some results of a stream."""
    if hasattr(result, "cancel"):
        with suppress(NnstretchError):
            result.result(LONGEST_S)
    elif hasattr(result, "__next__"):
        for _ in islice(result, 3):
            pass
        result.close()
    elif isinstance(result, Session):
        result.close()


def _probe(service: Service, opened: dict[str, Any], instance: Any) -> list[str]:
    with service.make(**opened) as untouched:
        expected = service.probe(untouched)
    if np.array_equal(service.probe(instance), expected):
        return []
    return ["another answer than an untouched one gives"]


def _long(refusal: NnstretchError) -> list[str]:
    said = str(refusal)
    sound = said and len(said) < LONGEST_REFUSAL
    return [] if sound else [f"a refusal of {len(said)} characters"]
