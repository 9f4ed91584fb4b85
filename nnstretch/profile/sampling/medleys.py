"""Medleys: kernels over maps of about one size, which are measured in turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nnstretch.kernel import Kernel

MEDLEY = 24
"""Kernels in a medley at the most."""
MOST_TOGETHER = 3e8
"""Elements and thirtieths of multiply-accumulates in a medley."""


def kernel_groups(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Group kernels over maps of about one size.

    The order of the medleys mixes them, should the budget end early.

    Very large ones are fewer, so that a medley fits into memory.
    """
    groups: list[list[Kernel]] = []
    for kernel in sorted(kernels, key=lambda k: (k.read_elements + k.write_elements, k.macs)):
        if (
            not groups
            or len(groups[-1]) == MEDLEY
            or sum(map(kernel_size, groups[-1])) + kernel_size(kernel) > MOST_TOGETHER
        ):
            groups.append([])
        groups[-1].append(kernel)
    random.Random(len(kernels)).shuffle(groups)
    return groups


def kernel_size(kernel: Kernel) -> float:
    """Return arithmetic and traffic in one number.

    Some thirty multiply-accumulates cost what moving one element costs.
    """
    return kernel.macs / 30 + kernel.read_elements + kernel.write_elements + kernel.weight_elements
