"""Every verb of the command line, with its module and the line that the overview shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: one word, or two where a verb has parts."""

    name: str
    module: str
    """Path below `nnstretch.cli`."""
    summary: str


VERBS = (
    Verb("inspect", "inspect", "operators, cuts, units and repeats of a network"),
    Verb("import", "import_", "a published NN-Stretch configuration becomes a plan"),
    Verb("profile", "profile", "measure this machine's kernels and fit a latency predictor"),
    Verb("predict", "predict.predict", "latency of a network, a plan or operator lists on a chip"),
    Verb("search", "search.search", "the proven fastest branched structure for a chip"),
    Verb("study", "study.study", "many trials, predicted, measured or trained, with many workers"),
    Verb(
        "study capacity",
        "study.capacity",
        "lower bounds on depth and width, from training small variants",
    ),
    Verb("train", "train.train", "train a network, original or branched, by a recipe"),
    Verb("quantize", "quantize", "int8 for LiteRT, with its accuracy before and after"),
    Verb(
        "export",
        "export.export",
        "a bundle of ONNX or LiteRT sub-graphs, or a folder of C++, verified",
    ),
    Verb(
        "partition",
        "partition.partition",
        "pipeline stages for a stream of inputs, balanced over processors",
    ),
    Verb("run", "run.run", "run a bundle's branches at once, on a virtual or a real clock"),
    Verb(
        "accelerate", "accelerate.accelerate", "schedule a network inside one accelerator, on chip"
    ),
    Verb(
        "bench", "bench.bench", "the original and its branches against each other on this machine"
    ),
    Verb("schedule", "schedule.schedule", "a task graph on processors, with lower bounds"),
    Verb(
        "simulate",
        "simulate.simulate",
        "networks that arrive at run time, under a policy, on the virtual clock",
    ),
    Verb(
        "simulate measure",
        "simulate.measure",
        "what the tasks of a workload take on this host, alone and beside others",
    ),
    Verb("simulate sweep", "simulate.sweep", "pools x policies x rates x trials of a workload"),
    Verb("serve", "serve.serve", "networks behind HTTP (KServe V2), scheduled as requests arrive"),
    Verb("report", "report", "show a whole story as one HTML page"),
    Verb(
        "doctor", "doctor.doctor", "what is installed, what is missing, and whether it works here"
    ),
)
"""In the order of the story. Modules are imported only when their verb is typed."""
VERB_NAMES = tuple(verb.name for verb in VERBS if " " not in verb.name)
BY_NAME = {verb.name: verb for verb in VERBS}
