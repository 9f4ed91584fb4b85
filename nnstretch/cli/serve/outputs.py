"""What a server writes beside its result: a record as requests end, and logs at the end."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nnstretch.cli.serve.record_header import record_header
from nnstretch.errors import NnstretchError, describe_error
from nnstretch.files.workload.service_record import RecordWriter
from nnstretch.schedule.simulation.cedr_logs import CedrLogs
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.serve.recorder import Recorder


@contextmanager
def recording(args: argparse.Namespace, settings: SimulationSettings) -> Iterator[Recorder | None]:
    """Yield who writes requests as they end, None where no record is wanted.

    Raises BadInput where the file cannot be begun.
    """
    from nnstretch import __version__

    if args.record is None:
        yield None
        return
    header = record_header(settings, ", ".join(args.models), __version__)
    recorder = Recorder(RecordWriter(args.record, header))
    try:
        yield recorder
    finally:
        recorder.close()


def written_json(
    args: argparse.Namespace, recorder: Recorder | None, logs: CedrLogs | None
) -> dict[str, Any]:
    """Write the logs; return where record and logs are, and why what is not written is not.

    Never raises for a disk: what became of the requests is still to be printed.
    """
    places: dict[str, Any] = {}
    errors: list[str] = []
    if recorder is not None:
        places["record"] = str(args.record)
        if recorder.error is not None:
            errors.append(reason_of(recorder.error))
    if logs is not None:
        try:
            places["log"] = str(logs.write(args.log))
        except NnstretchError as error:
            errors.append(str(error))
        except OSError as error:
            errors.append(f"cannot write {args.log}, {error.strerror or error}")
    return places | ({"not_written": errors} if errors else {})


def reason_of(error: Exception) -> str:
    """Return an error as a refusal says it."""
    return str(error) if isinstance(error, NnstretchError) else describe_error(error)
