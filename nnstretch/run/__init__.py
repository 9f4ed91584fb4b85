"""Run a bundle: true numbers from ONNX Runtime, time from a virtual or a real clock.

    session.py       Session(bundle).run(inputs): the one thing most users need
    network.py       a bundle's sub-graphs as callable numbers
    onnx_runtime.py  the backend
    emulation.py     how much slower than the chip a host has to play it
    measures.py      latencies and traces as the numbers of the command line
    perfetto.py      traces for chrome://tracing and ui.perfetto.dev

Needs neither torch nor Lightning.
"""

from nnstretch.run.measures import measure
from nnstretch.run.perfetto import write_perfetto
from nnstretch.run.session import Session

__all__ = ["Session", "measure", "write_perfetto"]
