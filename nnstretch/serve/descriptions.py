"""What a server says of itself: metadata as the protocol has it, the rest as Triton has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnstretch.bundle.manifest import Port
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.serve.infer import DEFAULT_LEVEL, LEVELS
from nnstretch.serve.network_server import NetworkServer
from nnstretch.serve.served_application import ServedApplication
from nnstretch.serve.tensors import datatype_of

VERSION = "1"
"""Of every model."""
EXTENSIONS = ("binary_tensor_data", "model_configuration", "schedule_policy", "statistics")


def server_metadata(version: str) -> dict[str, Any]:
    """Return the answer of /v2."""
    return {"name": "nnstretch", "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(served: ServedApplication) -> dict[str, Any]:
    """Return the answer of /v2/models/MODEL."""
    manifest = served.network.manifest
    return {
        "name": served.application.name,
        "versions": [VERSION],
        "platform": platform_of(served),
        "inputs": ports_json(manifest.inputs),
        "outputs": ports_json(manifest.outputs),
    }


def ports_json(ports: Sequence[Port]) -> list[dict[str, Any]]:
    """Return tensors as the protocol describes them."""
    rows: list[dict[str, Any]] = []
    for port in ports:
        shape = list(torch_spec(port).shape)
        rows.append({"name": port.name, "datatype": datatype_of(port), "shape": shape})
    return rows


def platform_of(served: ServedApplication) -> str:
    """Return who computes a model."""
    return f"nnstretch_{'_'.join(sorted(set(served.network.network.backends.values())))}"


def model_config(server: NetworkServer, served: ServedApplication) -> dict[str, Any]:
    """Return the answer of /v2/models/MODEL/config."""
    manifest, application = served.network.manifest, served.application
    policy: dict[str, Any] = {
        "priority_levels": LEVELS,
        "default_priority_level": DEFAULT_LEVEL,
        "default_queue_policy": {"max_queue_size": served.limit, "timeout_action": "REJECT"},
    }
    if application.deadline_us < float("inf"):
        policy["default_queue_policy"]["default_timeout_microseconds"] = int(
            application.deadline_us
        )
    processors = server.settings.processors
    instances: list[dict[str, Any]] = []
    for processor in processors:
        instances.append({"name": processor.name, "kind": "KIND_CPU", "count": 1, "gpus": []})
    return {
        "name": application.name,
        "platform": platform_of(served),
        "backend": "nnstretch",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [config_port(port) for port in manifest.inputs],
        "output": [config_port(port) for port in manifest.outputs],
        "dynamic_batching": policy,
        "instance_group": instances,
        "parameters": {
            "policy": {"string_value": server.settings.policy},
            "tasks": {"string_value": str(len(application.tasks))},
        },
    }


def config_port(port: Port) -> dict[str, Any]:
    """Return a tensor as Triton's configuration has it."""
    datatype = datatype_of(port)
    return {
        "name": port.name,
        "data_type": f"TYPE_{datatype}",
        "dims": list(torch_spec(port).shape),
    }


def statistics_json(served: Sequence[ServedApplication]) -> dict[str, Any]:
    """Return the answer of /v2/models/stats, times in ns."""
    return {"model_stats": [model_statistics(application) for application in served]}


def model_statistics(served: ServedApplication) -> dict[str, Any]:
    """Return the statistics of a model.

    Inputs and outputs are views, so they take no time: `success` is `queue` and `compute_infer`.
    """
    statistics = served.statistics
    answered, failed = statistics.answered, statistics.accepted_and_unanswered
    nothing = {"count": 0, "ns": 0}
    return {
        "name": served.application.name,
        "version": VERSION,
        "last_inference": int(statistics.last_s * 1000),
        "inference_count": answered,
        "execution_count": answered,
        "inference_stats": {
            "success": duration(answered, statistics.latencies.total_us),
            "fail": duration(failed, statistics.failed_us),
            "queue": duration(answered, statistics.queue_us),
            "compute_input": duration(answered, 0.0),
            "compute_infer": duration(answered, statistics.compute_us),
            "compute_output": duration(answered, 0.0),
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "batch_stats": [],
    }


def duration(count: int, total_us: float) -> dict[str, int]:
    """Return a count and a sum of times, ns."""
    return {"count": count, "ns": round(total_us * 1000)}


def repository_index(names: Sequence[str], ready: bool) -> list[dict[str, str]]:
    """Return the answer of /v2/repository/index."""
    state, reason = ("READY", "") if ready else ("UNAVAILABLE", "the server is ending")
    return [{"name": name, "version": VERSION, "state": state, "reason": reason} for name in names]
