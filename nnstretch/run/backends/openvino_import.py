"""OpenVINO as a module, without its telemetry."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

TELEMETRY = "openvino_telemetry"


def import_openvino() -> ModuleType:
    """Import OpenVINO, which would tell a server of every import, from a process that it forks
    beside our threads. Without the module of its telemetry it tells nobody.

    Whoever imported either before keeps it. Raises ImportError where OpenVINO is missing.
    """
    modules: dict[str, Any] = sys.modules
    if "openvino" in modules or TELEMETRY in modules:
        return import_module("openvino")
    modules[TELEMETRY] = None  # What is None cannot be imported.
    try:
        return import_module("openvino")
    finally:
        del modules[TELEMETRY]
