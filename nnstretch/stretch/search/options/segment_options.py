"""All segment options of a space, in the order of their cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.cost_tables import CostTables


def price_options(
    tables: CostTables,
    progress: Callable[[str, int, int], None],
    cuts: Sequence[int] | None = None,
) -> tuple[SegmentOption, ...]:
    """Return every segment option between cuts, all by default; report progress by the first cut.

    Tables of their branches are computed when they are asked for.
    """
    options: list[SegmentOption] = []
    for option in segment_options(tables, cuts):
        progress("pricing segments", option.i, tables.space.last)
        options.append(option)
    return tuple(options)


def most_meetings(options: Sequence[SegmentOption], last: int) -> list[int]:
    """Return how many meeting points of branches can follow each cut at most."""
    most = [-(last + 1)] * last + [0]
    for option in sorted(options, key=lambda option: -option.i):
        most[option.i] = max(most[option.i], most[option.j] + option.meetings)
    return most


def segment_options(
    tables: CostTables, cuts: Sequence[int] | None = None
) -> Iterator[SegmentOption]:
    """Yield every segment option: single processors everywhere, several where work can branch.

    Channels must be free to differ behind the segment, and weighted work must lie in it.
    """
    space = tables.space
    for i, j in combinations(range(space.last + 1) if cuts is None else cuts, 2):
        for processor in space.processors:
            yield SegmentOption(tables, i, j, (processor,))
        if j == space.last or not tables.original(i, j)[1]:
            continue
        for processors in space.processor_sets():
            for merge in space.merges:
                option = SegmentOption(tables, i, j, processors, merge)
                if option.bounds.may_fork(option.original[1]):
                    yield option
