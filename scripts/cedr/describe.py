"""Write the described chip's task graphs and workloads into examples/cedr.

python scripts/cedr describe --out examples/cedr
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import yaml
from chip_scale import FittedScale, fitted_scale
from network_graphs import GROUPS, network_graph
from published import DETECTION_S, FFT_US, MIX_MS, ZIP_US
from signal_apps import pulse_doppler, wifi_tx
from simulated import NOT_CALIBRATED, write_graph

from nnstretch.files.atomic import write_text
from nnstretch.graph import Graph

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "cedr"
NETWORKS = ("detector", "vgg", "speech")
PROVENANCE = f"{NOT_CALIBRATED}, the rest is said in zcu102.json; networks are stand-ins"
EVERYTHING = {"cpu": 3, "conv2d": 1, "zip": 1, "fft": 1}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the part's options to its parser."""
    parser.add_argument("--out", type=Path, default=EXAMPLES)


def run(args: argparse.Namespace) -> int:
    """Write graphs, workloads and the description."""
    args.out.mkdir(parents=True, exist_ok=True)
    graphs = captured_networks()
    with tempfile.TemporaryDirectory() as folder:
        scale = fitted_scale(graphs["detector"], Path(folder))
    write_description(args.out, scale)
    for name, graph in graphs.items():
        write_graph(args.out / f"{name}.json", network_graph(graph, scale.chip), PROVENANCE)
    for name, make in (("pulse_doppler", pulse_doppler), ("wifi_tx", wifi_tx)):
        write_graph(args.out / f"{name}.json", make(scale.code_us), PROVENANCE)
    for name, data in workloads().items():
        write_text(args.out / name, yaml.safe_dump(data, sort_keys=False, width=100))
    return 0


def captured_networks() -> dict[str, Graph]:
    """Return the graphs of the stand-in networks, as captured."""
    import torch  # only who captures needs it

    from nnstretch.capture.torch_export import capture

    sys.path.insert(0, str(EXAMPLES))
    import networks

    graphs: dict[str, Graph] = {}
    for name in NETWORKS:
        graphs[name] = capture(getattr(networks, name)(), torch.zeros(networks.INPUTS[name]), name)
    return graphs


def write_description(folder: Path, scale: FittedScale) -> None:
    """Write what the graphs' costs were made of, each number with its source."""
    slides = "slides of AICCSA 2023, DOI 10.1109/AICCSA59173.2023.10479315, read off a plot"
    constants = "example costs of the generator of configurations, UA-RCL/CEDR 96eeda6"
    results = "result files of UA-RCL/CEDR 96eeda6, signal mix at 10 Mbps on one CPU, SIMPLE"
    document = {
        "chip": "zcu102",
        "calibrated": False,
        "processors": EVERYTHING,
        "set_the_scale": [
            {"what": "detection on 3 CPUs, s", "is": DETECTION_S["eft"][0], "source": slides},
            {
                "what": "the same with conv2d under EFT, s",
                "is": DETECTION_S["eft"][2],
                "source": slides,
            },
            {"what": "signal mix, ms", "is": MIX_MS["1 cpu"]["rr"][0], "source": results},
        ],
        "operation_us": {
            "cpu": scale.chip.cpu_us,
            "conv2d": scale.chip.conv2d_us,
            "zip": scale.chip.cpu_us * ZIP_US["zip"] / ZIP_US["cpu"],
        },
        "code_beside_an_fft_us": scale.code_us,
        "fft_us": FFT_US | {"source": constants},
        "zip_cpu_over_unit": ZIP_US["cpu"] / ZIP_US["zip"],
        "zip_source": f"ratio of {constants}; the size that they are for was not published",
        "groups_of_a_layer": GROUPS,
    }
    write_text(folder / "zcu102.json", json.dumps(document, indent=1) + "\n")


def workloads() -> dict[str, dict[str, object]]:
    """Return the workloads and sweeps by file name."""
    source = {"calibrated": False, "provenance": PROVENANCE}
    signal: list[dict[str, object]] = []
    for name in ("wifi_tx", "pulse_doppler"):
        arrivals = {"period_ms": 101.27, "first": "period"}
        signal.append({"name": name, "model": f"{name}.json", "arrivals": arrivals, "instances": 5})
    networks: list[dict[str, object]] = []
    for name in NETWORKS:
        model = f"{name}.json"
        networks.append(
            {"name": name, "model": model, "arrivals": {"times_ms": [0.0]}, "instances": 1}
        )
    signal_mix = source | {"pool": {"cpu": 3, "fft": 1}, "policy": "eft", "applications": signal}
    all_networks = source | {"pool": EVERYTHING, "policy": "eft", "applications": networks}
    sweep = {
        "workload": "signal.yaml",
        "pools": [{"cpu": 1}, {"cpu": 2}, {"cpu": 3}, {"cpu": 3, "fft": 1}],
        "policies": ["rr", "met", "eft", "etf", "heft_rt"],
        "rates": [1, 2, 5, 10, 20, 50, 100, 200],
    }
    return {"signal.yaml": signal_mix, "networks.yaml": all_networks, "signal_sweep.yaml": sweep}
