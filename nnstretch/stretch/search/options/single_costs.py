"""Costs of the original layers of a segment on one processor, over the widths that they read."""

from __future__ import annotations

import numpy as np

from nnstretch.stretch.search.options.option_costs import OptionCosts
from nnstretch.stretch.search.options.segment_option import SegmentOption


def single_costs(option: SegmentOption) -> OptionCosts:
    """Return the costs of an option on its only processor: `[merged width it reads]`."""
    i, j, tails = option.i, option.j, option.tables.original_tails(option.j)
    width = int(option.space.inner_widths[j][i][-1])
    key = "single entry", (i, option.processors, width)
    us, macs, params = option.tables.once(key, lambda: single_entry(option, width))
    if tails is None:
        (table,) = option.branch_tables
        is_plain = option.tables.needs_no_adapter(i)[:, table.first[0]]
        us = us + np.where(is_plain, table.plain_us[0], table.adapted_us[0])
        return OptionCosts(us, macs + table.macs[0], params + table.params[0])
    (price_key,), (copy_out,) = option.price_keys, option.copies_out
    copy_us = copy_out.cost_us(option.bytes_out * option.space.original_width(j))
    behind_us = tails.us[price_key][i] + copy_us
    return OptionCosts(us + behind_us, macs + tails.macs[i], params + tails.params[i])


def single_entry(option: SegmentOption, width: int) -> OptionCosts:
    """Return what its first unit costs at an output width, with what it copies and waits for."""
    head, (price_key,), (copy_in,) = option.head, option.price_keys, option.copies_in
    column = int(np.searchsorted(head.widths_out, width))
    size_bytes = option.bytes_in * option.space.merged_widths(option.i)
    copy_us = copy_in.fixed_us + copy_in.us_per_kib * size_bytes / 1024
    us = head.costs.latency_us[price_key][:, column] + copy_us + option.sync_us
    return OptionCosts(us, head.costs.macs[:, column], head.costs.params[:, column])
