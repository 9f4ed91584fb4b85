"""Costs of the original layers of segments on one processor, over the widths that they read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.stretch.search.options.option_costs import OptionCosts
from nnstretch.stretch.search.options.segment_option import SegmentOption


def single_costs(options: Sequence[SegmentOption]) -> OptionCosts:
    """Return the costs of options that share start and processor: `[option, merged width]`."""
    entries = map(np.array, zip(*map(single_entry, options), strict=True))
    behind = map(np.array, zip(*map(behind_entry, options), strict=True))
    pairs = zip(entries, behind, strict=True)
    return OptionCosts(*(first + later.reshape(len(options), -1) for first, later in pairs))


def behind_entry(option: SegmentOption) -> OptionCosts:
    """Return the costs behind the first unit: numbers, or `[merged width]` under layouts."""
    i, j, tails = option.i, option.j, option.tables.original_tails(option.j)
    if tails is None:
        (table,) = option.branch_tables
        is_plain = option.tables.needs_no_adapter(i)[:, table.first[0]]
        us = np.where(is_plain, table.plain_us[0], table.adapted_us[0])
        return OptionCosts(us, table.macs[0], table.params[0])
    (price_key,), (copy_out,) = option.price_keys, option.copies_out
    copy_us = copy_out.cost_us(option.bytes_out * option.space.original_width(j))
    return OptionCosts(tails.us[price_key][i] + copy_us, tails.macs[i], tails.params[i])


def single_entry(option: SegmentOption) -> OptionCosts:
    """Return what the first unit costs, with what it copies and waits for: `[merged width]`."""
    width = int(option.space.inner_widths[option.j][option.i][-1])
    key = "single entry", (option.i, option.processors, width)
    return option.tables.once(key, lambda: compute_entry(option, width))


def compute_entry(option: SegmentOption, width: int) -> OptionCosts:
    """Compute `single_entry` at an output width."""
    head, (price_key,), (copy_in,) = option.head, option.price_keys, option.copies_in
    column = int(np.searchsorted(head.widths_out, width))
    size_bytes = option.bytes_in * option.space.merged_widths(option.i)
    copy_us = copy_in.fixed_us + copy_in.us_per_kib * size_bytes / 1024
    us = head.costs.latency_us[price_key][:, column] + copy_us + option.sync_us
    return OptionCosts(us, head.costs.macs[:, column], head.costs.params[:, column])
