"""What a session takes from its bundle and chip: processors, and predicted times of tasks."""

from __future__ import annotations

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import check_predicted_for, processors_named
from nnstretch.errors import BadInput, UnknownName, name_first
from nnstretch.schedule import task_durations_us
from nnstretch.soc import Processor, Soc
from nnstretch.task import TaskTimes


def session_processors(bundle: Bundle, soc: str | Soc | None) -> tuple[Processor, ...]:
    """Return the processors that a bundle uses, as the chip describes them.

    Raises UnknownName for a chip that only has a name, BadInput where times are of another chip.
    """
    used = dict.fromkeys(sub.processor for sub in bundle.manifest.subgraphs)
    made_for = bundle.manifest.soc
    name = soc.name if isinstance(soc, Soc) else soc
    if isinstance(soc, Soc):
        processors = tuple(soc.processor(processor) for processor in used)
    elif name is None or name == made_for:
        processors = processors_named(bundle.manifest, used)
    else:
        raise UnknownName(
            f"unknown SoC {name!r}, {bundle.name}, it was made for {made_for}; pass the Soc of"
            f" load_soc({name!r})"
        )
    check_predicted_for(bundle.name, bundle.manifest.predicted_for, name)
    return processors


def session_durations_us(
    bundle: Bundle, clock: str, processors: tuple[Processor, ...]
) -> TaskTimes:
    """Return predicted times of every sub-graph where it is placed, or none at all.

    Raises BadInput where only some have one, or none has and the clock is virtual.
    """
    subs = bundle.manifest.subgraphs
    missing = [sub.name for sub in subs if sub.processor not in sub.predicted_us]
    if not missing:
        return task_durations_us(bundle.manifest, processors)
    if clock == "real" and not bundle.manifest.is_predicted:
        return {}
    why = "a virtual clock needs them" if clock == "virtual" else "a timetable needs all or none"
    named = name_first(missing) if len(missing) > 1 else f"{missing[0]}, 1"
    raise BadInput(f"no predicted time of {named} of {len(subs)} sub-graphs, {bundle.name}, {why}")
