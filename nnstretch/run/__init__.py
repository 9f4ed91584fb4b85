"""Run a bundle: true numbers from one of several backends, time from a virtual or a real clock.

    session.py           Session
    real_clock.py        a session's threads and bound memory
    session_times.py     processors and predicted times of a session
    server.py            Server
    load_test.py         closed-loop clients
    served_plans.py      several plans, loaded once
    loaded_network.py    loaded sub-graphs
    bound_memory.py      sub-graphs bound to fixed memory (I/O binding)
    in_place_merge.py    branches write into the merged tensor
    tensor_io.py         layout and quantization at the network's edge
    overlap_check.py     do two workers overlap here?
    isolated_latency.py  each sub-graph alone on its core
    time_dilation.py     how much slower the host plays the chip
    metrics.py           latency percentiles, critical path, utilization
    perfetto.py          Chrome/Perfetto trace writer
    backends/            one runtime serves one processor
    requests/            a server's requests and its scheduling thread
    results/             measures as the contract's JSON
    pipelines/           many inputs in flight

Needs neither torch nor Lightning.
"""

from nnstretch.run.metrics import measure
from nnstretch.run.overlap_check import Overlap
from nnstretch.run.perfetto import write_perfetto
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.session import Session

__all__ = ["Overlap", "Pipeline", "Session", "measure", "write_perfetto"]
