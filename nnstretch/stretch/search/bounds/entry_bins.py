"""First units of a segment's branches over bins of the merged widths that they read.

A bin has the least latency and the most work of its widths. A wider input costs both, so either
alone would make wide bins loose: `EntryTilt` takes out what they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nnstretch.stretch.cost.cost_arrays import Array
from nnstretch.stretch.search.bounds.multipliers import Multipliers, SegmentMultipliers
from nnstretch.stretch.search.compiled.library import (
    EntryBinsStruct,
    Packed,
    doubles,
    pointer_pair,
)
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.space.search_space import SearchSpace

SINGLE_BINS = 30
"""Merged widths up to which each is a bin of its own."""
FAR_BINS = 0.4
"""How much finer bins get, as an exponent, with each factor e of their distance from the original
width: bounds of more than two branches lose most where these are wide."""
LEAST_WIDTHS = 3
"""Merged widths from which on a tilt is worth its while."""
KEPT_NUMBERS = 10_000
"""Numbers of a table of bins up to which it is kept for the next evaluation."""
USUAL_MACS = 0.8
"""MACs of all branches of a segment over the original's, in usual plans."""


@dataclass(frozen=True, slots=True)
class EntryTilt:
    """What a channel more of the merged width usually adds to the first unit of a branch."""

    us: float = 0.0
    """The same for branches that start together, since they read the same width."""
    macs: float = 0.0
    params: float = 0.0


@dataclass(frozen=True)
class EntryBins:
    """First units of one branch: least latency and most work, `[width bin, output width]`.

    Each width counts as wide as the widest of its bin: the tilt fills up what its channels lack.
    `per_channel_us` takes that out of a bound again.
    """

    us: Array
    macs: Array
    params: Array
    spans: Array
    """Channels between the narrowest and the widest of each bin."""
    tilt: EntryTilt = EntryTilt()
    plain: EntryBins | None = None
    """The same where no adapter is needed; infinite where one always is."""

    def take(self, rows: Array | slice) -> EntryBins:
        """Return the chosen bins."""
        plain = None if self.plain is None else self.plain.take(rows)
        if plain is not None and not np.isfinite(plain.us).any():
            plain = None
        columns = self.us[rows], self.macs[rows], self.params[rows], self.spans[rows]
        return EntryBins(*columns, self.tilt, plain)

    @cached_property
    def packed(self) -> Packed:
        """Return the entries for compiled loops."""
        kinds = [self] if self.plain is None else [self, self.plain]
        kinds_us = [doubles(kind.us) for kind in kinds]
        macs = [doubles(kind.macs) for kind in kinds]
        params = [doubles(kind.params) for kind in kinds]
        spans = doubles(self.spans)
        pointers = [pointer_pair(arrays) for arrays in (kinds_us, macs, params)]
        tilt = self.tilt.us, self.tilt.macs, self.tilt.params
        struct = EntryBinsStruct(self.us.shape[1], *pointers, spans.ctypes.data, *tilt)
        return Packed(struct, (kinds_us, macs, params, spans))


def width_bins(space: SearchSpace, i: int, bin_factor: float) -> Array:
    """Return where bins of merged widths begin at a cut; the original width stands alone."""
    widths, full_width = space.merged_widths(i), space.original_width(i)
    factors = np.ones(len(widths))
    if len(widths) > SINGLE_BINS:
        finer = FAR_BINS if len(space.processors) > 2 else 0.0
        factors = bin_factor ** (1 - finer * np.abs(np.log(widths / full_width)))
    full, least = space.merged_row(i, full_width), (widths / factors).tolist()
    starts, narrowest = [0], float(widths[0])
    for k in range(1, len(widths)):
        if k in (full, full + 1) or least[k] > narrowest:
            starts.append(k)
            narrowest = float(widths[k])
    return np.array(starts)


def exact_entries(option: SegmentOption, width: int) -> list[EntryBins] | None:
    """Return the first units of each branch on one width, as a single bin."""
    once = "entries", (option.entry_key, width)
    return option.tables.once(once, lambda: single_bins(option, width))


def single_bins(option: SegmentOption, width: int) -> list[EntryBins] | None:
    """Compute `exact_entries`."""
    entries = option.entry_costs(width)
    if entries is None:
        return None
    is_plain, spans = option.needs_no_adapter(width), np.zeros(1)
    bins: list[EntryBins] = []
    for entry in entries:
        us, work = entry.us[None], (entry.macs[None], entry.params[None])
        if is_plain is None:
            bins.append(EntryBins(us, *work, spans))
            continue
        plain = EntryBins(np.where(is_plain, us, np.inf), *work, spans)
        bins.append(EntryBins(np.where(is_plain, np.inf, us), *work, spans, plain=plain))
    return bins


def bin_entries(option: SegmentOption, starts: Array) -> list[EntryBins] | None:
    """Return the first units of each branch over width bins; None where it cannot start."""
    if option.merge == "project":
        return exact_entries(option, option.space.original_width(option.i))
    if len(starts) * len(option.head.widths_out) > KEPT_NUMBERS:
        return compute_bins(option, starts)
    key = "bins", (option.i, option.processors, starts.tobytes())
    return option.tables.once(key, lambda: compute_bins(option, starts))


def compute_bins(option: SegmentOption, starts: Array) -> list[EntryBins]:
    """Compute `bin_entries` of branches that are concatenated."""
    space, i = option.space, option.i
    widths, costs = space.merged_widths(i), option.head.costs
    missing = channels_missing(widths, starts)[:, None]
    times_us = []
    for price_key, link in zip(option.price_keys, option.copies_in, strict=True):
        copy_us = link.fixed_us + link.us_per_kib * option.bytes_in * widths / 1024
        times_us.append(option.slowdown * costs.latency_us[price_key] + copy_us[:, None])
    tilt = usual_tilt(option, times_us)
    binned = BinnedKinds(starts, option.tables.needs_no_adapter(i))
    macs = binned.extremes(np.maximum, costs.macs + tilt.macs * missing, 0.0)
    params = binned.extremes(np.maximum, costs.params + tilt.params * missing, 0.0)
    bins = []
    for us in times_us:
        entry: EntryBins | None = None
        least_us = binned.extremes(np.minimum, us + tilt.us * missing, np.inf)
        for columns in zip(least_us, macs, params, strict=True):
            entry = EntryBins(*columns, missing[starts, 0], tilt, entry)
        assert entry is not None
        bins.append(entry)
    return bins


def channels_missing(widths: Array, starts: Array) -> Array:
    """Return how many channels each width has less than the widest of its bin."""
    ends = np.append(starts[1:], len(widths))
    return np.asarray(np.repeat(widths[ends - 1], ends - starts) - widths)


@dataclass(frozen=True)
class BinnedKinds:
    """Bins of rows of tables `[merged width, output width]`, apart for each kind of entry.

    No unit has the latency of one that needs no adapter and the work of one that needs it.
    """

    starts: Array
    is_plain: Array
    """Where no adapter is needed: at one width for each output, or at all."""

    def extremes(self, extreme: np.ufunc, table: Array, none: float) -> list[Array]:
        """Return the least or most of each bin: without adapters and with; `none` without any."""
        rows, columns = np.nonzero(self.is_plain)
        plain = np.full((len(self.starts), table.shape[1]), none)
        bins = np.searchsorted(self.starts, rows, side="right") - 1
        extreme.at(plain, (bins, columns), table[rows, columns])
        adapted = table.copy()
        adapted[rows, columns] = none
        return [plain, extreme.reduceat(adapted, self.starts, axis=0)]


def usual_tilt(option: SegmentOption, times_us: Sequence[Array]) -> EntryTilt:
    """Return what first units of a usual output width gain with each channel that they read."""
    head, widths = option.head, option.head.widths_in
    if len(widths) < LEAST_WIDTHS:
        return EntryTilt()
    branches = len(option.processors)
    share = (USUAL_MACS / branches) ** 0.5 if option.branched else 1.0
    column = int(np.searchsorted(head.widths_out, share * head.widths_out[-1]))
    low, high = len(widths) // 4, len(widths) - 1
    distance = float(widths[high] - widths[low])

    def slope(table: Array) -> float:
        """Return how much a table gains with each channel."""
        ends = table[[low, high], column]
        return max(0.0, float(ends[1] - ends[0]) / distance) if np.isfinite(ends).all() else 0.0

    us = sum(map(slope, times_us)) / branches
    return EntryTilt(us, slope(head.costs.macs), slope(head.costs.params))


def per_channel_us(
    entries: Sequence[EntryBins], relaxations: SegmentMultipliers, multipliers: Multipliers
) -> Array:
    """Return what a bound gains with each channel below the widest of a bin: `[relaxation]`, us.

    The work that tilts added was rewarded; the latency that they added was paid.
    """
    per_mac = multipliers.per_mac + relaxations.per_mac
    gain_us = -entries[0].tilt.us + np.zeros(len(per_mac))
    for entry in entries:
        gain_us += per_mac * entry.tilt.macs + multipliers.per_param * entry.tilt.params
    return gain_us
