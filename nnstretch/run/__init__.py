"""Run a bundle: true numbers from one of several backends, time from a virtual or a real clock.

    session.py       Session(bundle).run(inputs): the one thing most users need
    server.py        Server(bundle).submit(inputs): many clients, one answer or one error each
    requests.py      clients that ask again when they are answered, on either clock
    stream.py        Pipeline(bundle).stream(items): many items in flight, results in order
    belt.py          the items on their way, and what a worker does with one
    crafts.py        what a stage computes: sub-graphs, or a Python function
    workers.py       on what they run, on which cores, what they have done
    streamed.py      a stream as numbers: period, bottleneck, balance; predicted, and in turn
    network.py       a bundle's sub-graphs as callable numbers
    wired.py         the same on memory of their own, for who runs a network again and again
    meeting.py       branches that write side by side, so that their merge has nothing to do
    edges.py         the way in and out: PyTorch's order and real numbers outside, int8 and channels last inside
    backends.py      who computes which sub-graph
    promises.py      a file against its manifest
    onnx_runtime.py  backends, each loaded only where it is chosen
    litert.py
    openvino.py
    overlap.py       do two workers truly run at once here?
    alone.py         what each sub-graph takes alone on its core
    emulation.py     how much slower than the chip a host has to play it
    measures.py      latencies and traces as the numbers of the command line
    items.py         items of a pipeline in a trace: rows, and who handed what to whom
    perfetto.py      traces for chrome://tracing and ui.perfetto.dev

Needs neither torch nor Lightning.
"""

from nnstretch.run.measures import measure
from nnstretch.run.overlap import Overlap
from nnstretch.run.perfetto import write_perfetto
from nnstretch.run.session import Session
from nnstretch.run.stream import Pipeline

__all__ = ["Overlap", "Pipeline", "Session", "measure", "write_perfetto"]
