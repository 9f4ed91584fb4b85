"""OpenVINO as a module, without its telemetry."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

TELEMETRY = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """Import OpenVINO without its telemetry.

    It would report every import to a server, from a process forked beside our threads. A process
    that imported either before keeps it. Raises ImportError where OpenVINO is missing.
    """
    modules: dict[str, Any] = sys.modules
    if "openvino" in modules or TELEMETRY in modules:
        return import_module("openvino")
    modules[TELEMETRY] = None  # What is None cannot be imported.
    try:
        return import_module("openvino")
    finally:
        del modules[TELEMETRY]
