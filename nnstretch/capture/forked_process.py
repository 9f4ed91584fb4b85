"""PyTorch in a fork of a process that has used it: the threads of its operators stayed behind.

An operator that wants two threads would wait for the other one for ever. In a fork operators take
one, as in the workers of PyTorch's own DataLoader.
"""

from __future__ import annotations

import os

import torch

_IMPORTED_IN = os.getpid()


def operator_threads(wanted: int) -> int:
    """Return how many threads an operator may take in this process."""
    return wanted if os.getpid() == _IMPORTED_IN else 1


def take_one_thread() -> None:
    """Have operators take one thread."""
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=take_one_thread)
