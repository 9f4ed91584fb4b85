"""What was measured, line by line, so that an interrupted profile goes on where it stopped."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import parse_json_line, read_complete_lines
from nnstretch.kernel import Kernel
from nnstretch.profile.sampling.sample import Sample

FORMAT = 1
NAME = "samples.jsonl"
COUNTED = (
    "cin",
    "cout",
    "hw_in",
    "hw_out",
    "kernel",
    "stride",
    "groups",
    "batch",
    "macs",
    "read_elements",
    "write_elements",
    "weight_elements",
)
MOST = 2**53


@dataclass
class ProfileJournal:
    """Appends whole batches; a line that was cut off by a kill is dropped when it is read again."""

    path: Path
    head: dict[str, Any]
    """Backend, version, element type, core.

    What must be the same for samples to belong together.
    """
    spent_s: float = 0.0
    """Seconds that all runs together took for this."""
    unwritten_s: float = 0.0

    def spend(self, spent_s: float) -> None:
        """Time that brought no sample: drawing, probing, looking for doubts.

        It is written with the next batch.
        """
        self.spent_s += spent_s
        self.unwritten_s += spent_s

    def append(self, cluster: int, samples: list[Sample], spent_s: float) -> None:
        """Append samples. Raises BadInput when the file cannot be written."""
        self.spend(spent_s)
        rows = [
            {
                "cluster": cluster,
                "spent_s": round(self.unwritten_s, 4),
                "samples": [sample_row(sample) for sample in samples],
            }
        ]
        self.unwritten_s = 0.0
        if not self.path.exists() or not self.path.stat().st_size:
            rows.insert(0, {"format": FORMAT} | self.head)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BadInput(
                f"cannot write {self.path}, {error.strerror}, what was measured before is kept"
            ) from None


def sample_row(sample: Sample) -> dict[str, Any]:
    """Return a sample as JSON data."""
    times = [round(us, 2) for us in sample.latencies_us]
    return {
        "kernel": asdict(sample.kernel),
        "us": times,
        "reference_us": round(sample.reference_us, 2),
    }


def open_journal(
    folder: Path, head: dict[str, Any]
) -> tuple[ProfileJournal, dict[int, list[Sample]]]:
    """Open the journal of a folder; return it and its samples by cluster, none where there is no
    file.

    Raises BrokenFile where the file belongs to another backend, version or machine, or is none of
    ours.
    """
    path = folder / NAME
    journal, found = ProfileJournal(path, head), dict[int, list[Sample]]()
    lines = read_complete_lines(path)
    if not lines:
        return journal, found
    first = parse_json_line(lines[0], path, 1)
    for key, value in ({"format": FORMAT} | head).items():
        if first.get(key) != value:
            raise BrokenFile(
                f"{key} is {first.get(key)!r}, {path} line 1, this profile has {value!r}; take"
                " another folder or --fresh"
            )
    for at, line in enumerate(lines[1:], 2):
        data = parse_json_line(line, path, at)
        try:
            cluster, samples, spent_s = (
                int(data["cluster"]),
                [parse_sample(item) for item in data["samples"]],
                float(data["spent_s"]),
            )
            if not 0 <= spent_s < math.inf:
                raise ValueError(f"spent_s is {spent_s}")
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BrokenFile(
                f"not a batch of samples, {path} line {at}, {type(error).__name__}:"
                f" {str(error)[:100]}"
            ) from None
        found.setdefault(cluster, []).extend(samples)
        journal.spent_s += spent_s
    return journal, found


def parse_sample(data: dict[str, Any]) -> Sample:
    """Parse a sample. Raises KeyError, TypeError or ValueError for what no meter wrote."""
    known = {field.name for field in fields(Kernel)}
    kernel = {key: value for key, value in data["kernel"].items() if key in known}
    kernel |= {key: tuple(kernel.get(key, ())) for key in ("nodes", "epilogue", "shape_out")}
    kernel["shapes_in"] = tuple(tuple(map(int, shape)) for shape in kernel.get("shapes_in", ()))
    for key in COUNTED:
        if type(kernel[key]) is not int or not 0 <= kernel[key] <= MOST:
            raise ValueError(f"{key} is {kernel[key]!r}")
    times, reference_us = tuple(map(float, data["us"])), float(data.get("reference_us", 0.0))
    if not all(0 < us < math.inf for us in times) or not 0 <= reference_us < math.inf:
        raise ValueError("times are not positive numbers")
    return Sample(Kernel(**kernel), times, reference_us)
