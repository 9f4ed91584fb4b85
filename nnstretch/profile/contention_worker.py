"""A busy neighbour: `python -m nnstretch.profile.contention_worker BACKEND DTYPE CORE` runs kernels
on one core until it is killed or orphaned.

Kernels come as one line of JSON on standard input; `busy` on standard output says that they run.
"""

from __future__ import annotations

import json
import os
import sys

from nnstretch.profile.backends.registry import meter_for
from nnstretch.profile.machine import pin_process
from nnstretch.profile.sampling.journal import decode_kernels


def main() -> None:
    """Run kernels on a core until the process is ended."""
    parent = os.getppid()
    backend, dtype, core = sys.argv[1:]
    kernels = decode_kernels(json.loads(sys.stdin.readline()))
    with pin_process(int(core)):
        meter = meter_for(backend, dtype)
        chains = [(kernel,) for kernel in kernels]
        meter.measure(chains, 1)
        print("busy", flush=True)
        while os.getppid() == parent:
            meter.measure(chains, 20)


if __name__ == "__main__":
    main()
