"""What was measured, line by line, so that an interrupted profile goes on where it stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nnstretch.errors import BrokenFile
from nnstretch.profile.sample import Sample
from nnstretch.protocols import Kernel

FORMAT = 1
NAME = "samples.jsonl"


@dataclass
class Journal:
    """Appends whole batches; a line that was cut off by a kill is dropped when it is read again."""

    path: Path
    head: dict[str, Any]
    """Backend, version, element type, core: what must be the same for samples to belong together."""
    spent_s: float = 0.0
    """Seconds that all runs together took for this."""
    unwritten_s: float = 0.0

    def spend(self, spent_s: float) -> None:
        """Time that brought no sample: drawing, probing, looking for doubts. It is written with the next batch."""
        self.spent_s += spent_s
        self.unwritten_s += spent_s

    def append(self, cluster: int, samples: list[Sample], spent_s: float) -> None:
        self.spend(spent_s)
        rows = [{"cluster": cluster, "spent_s": round(self.unwritten_s, 4), "samples": [row(sample) for sample in samples]}]
        self.unwritten_s = 0.0
        if not self.path.exists():
            rows.insert(0, {"format": FORMAT} | self.head)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(one) + "\n" for one in rows)
            file.flush()
            os.fsync(file.fileno())


def row(sample: Sample) -> dict[str, Any]:
    times = [round(us, 2) for us in sample.latencies_us]
    return {"kernel": asdict(sample.kernel), "us": times, "reference_us": round(sample.reference_us, 2)}


def opened(folder: Path, head: dict[str, Any]) -> tuple[Journal, dict[int, list[Sample]]]:
    """The journal of a folder and its samples by cluster; none yet where there is no file.

    Raises BrokenFile where the file belongs to another backend, version or machine, or is none of ours.
    """
    path = folder / NAME
    journal, found = Journal(path, head), dict[int, list[Sample]]()
    if not path.exists():
        return journal, found
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    first = parsed(lines[0], path, 1) if lines and lines[0].endswith("\n") else {}
    wanted = {"format": FORMAT} | head
    for key, value in wanted.items():
        if first.get(key) != value:
            raise BrokenFile(f"{key} is {first.get(key)!r}, {path} line 1, this profile has {value!r}; take another folder or --fresh")
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        path.write_text("".join(whole), encoding="utf-8")
    for at, line in enumerate(whole[1:], 2):
        data = parsed(line, path, at)
        try:
            cluster, samples, spent_s = int(data["cluster"]), [sample_of(item) for item in data["samples"]], float(data["spent_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenFile(f"not a batch of samples, {path} line {at}, {type(error).__name__}: {error}") from None
        found.setdefault(cluster, []).extend(samples)
        journal.spent_s += spent_s
    return journal, found


def parsed(line: str, path: Path, at: int) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise BrokenFile(f"not JSON, {path} line {at}, {error.msg}") from None
    if not isinstance(data, dict):
        raise BrokenFile(f"a {type(data).__name__}, {path} line {at}, needed is an object")
    return data


def sample_of(data: dict[str, Any]) -> Sample:
    known = {field.name for field in fields(Kernel)}
    kernel = {key: value for key, value in data["kernel"].items() if key in known}
    kernel |= {key: tuple(kernel.get(key, ())) for key in ("nodes", "epilogue", "shape_out")}
    kernel["shapes_in"] = tuple(tuple(map(int, shape)) for shape in kernel.get("shapes_in", ()))
    return Sample(Kernel(**kernel), tuple(map(float, data["us"])), float(data.get("reference_us", 0.0)))
