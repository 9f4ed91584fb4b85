"""One search of the comparison in a process of its own, limited in time and memory, and the journal
of finished ones.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from comparison_rows import COMBINATIONS, Searched, Task
from published_plans import DATA, Phone

from nnstretch.errors import BrokenFile, NnstretchError
from nnstretch.files.package_data import package_data
from nnstretch.predict import load_soc
from nnstretch.stretch.search.constraints import SegmentLimits
from nnstretch.stretch.search.search import search
from nnstretch.stretch.search.search_result import SearchResult

SOC = "mi9"
CODE = ("capture", "predict", "structure", "stretch")
GRACE_S = 5.0
"""For a search that has answered to leave by itself."""
Key = tuple[str, str, str, tuple[tuple[str, float], ...]]
Tell = Callable[[int, int], None]


def code_fingerprint(data: Path = DATA) -> str:
    """Digest what decides a row: published data, the chip's predictors, the sources that search."""
    digest = hashlib.sha256()
    known = (
        data / "configs.csv",
        *sorted((package_data("latency_predictors") / SOC).glob("*.json")),
    )
    named = [(path.name, path) for path in known]
    named += [(path.relative_to(package()).as_posix(), path) for path in search_sources()]
    for name, path in named:
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def package() -> Path:
    """Return the folder of the package."""
    return Path(sys.modules["nnstretch"].__file__ or "").parent


def search_sources() -> list[Path]:
    """Return the files of the package that decide what a search finds: nouns and sub-folders."""
    folders = [path for folder in CODE for path in sorted((package() / folder).rglob("*.py"))]
    return [*sorted(package().glob("*.py")), *folders]


def key_of(searched: Searched) -> Key:
    return (
        searched.network,
        searched.combination,
        searched.bound,
        tuple(sorted(searched.limits.items())),
    )


def read_journal(path: Path) -> dict[Key, Searched]:
    """The last line of every search. Raises BrokenFile that names the line."""
    found: dict[Key, Searched] = {}
    names = {f.name for f in fields(Searched)}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, text in enumerate(lines, 1):
        try:
            data = json.loads(text)
            row = Searched(
                **{
                    name: value
                    for name, value in data.items()
                    if name in names and value is not None
                }
            )
            found[key_of(row)] = replace(row, processors=tuple(row.processors))
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise BrokenFile(
                f"journal {path} is unreadable in line {number}, {error}, delete the line"
            ) from error
    return found


def clean(searched: Searched) -> dict[str, Any]:
    """JSON has no NaN: what is not known is null."""
    return {name: None if value != value else value for name, value in asdict(searched).items()}


def append(path: Path, searched: Searched) -> None:
    """Append a line; half a line of an interrupted run is dropped first, so it costs no other."""
    with path.open("ab") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(json.dumps(clean(searched)).encode() + b"\n")


def fresh(
    task: Task, limits: Mapping[str, float], journal: Mapping[Key, Searched], code: str
) -> tuple[Searched | None, str]:
    """The journal's row of a task, and why it must be searched again, empty where it need not."""
    row = journal.get(
        (task.network, task.combination, task.bound.source, tuple(sorted(limits.items())))
    )
    if row is None:
        return None, "not searched yet"
    if row.stopped:
        return row, "stopped the last time"
    return row, "" if row.code == code else "code or data changed"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one search may use."""

    seconds: float
    memory_bytes: int


def memory_peak_bytes() -> int:
    """Return the peak of this process; getrusage would count the process that started it, too."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return (
            int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
            * 1024
        )
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def child(task: Task, limits: Mapping[str, float], memory_bytes: int, pipe: Connection) -> None:
    """Sends ("at", done, total) as it goes, and last ("end", Searched as a dictionary)."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    torch.set_num_threads(1)
    blank = Searched(
        task.network, task.combination, task.bound.source, dict(limits), code_fingerprint()
    )
    try:
        done = searched(task, blank, lambda _what, at, total: pipe.send(("at", at, total)))
    except NnstretchError as error:
        done = replace(blank, refusal=str(error), peak_bytes=memory_peak_bytes())
    # Broad on purpose: whatever one search raises is the end of that row, not of the table.
    except Exception as error:
        short = isinstance(error, MemoryError) or "allocate memory" in str(error)
        broke = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        why = (
            f"out of memory, {memory_bytes / 1e9:g} GB of data or less were allowed"
            if short
            else broke
        )
        done = replace(blank, refusal=why, stopped=True, peak_bytes=memory_peak_bytes())
    pipe.send(("end", asdict(done), 0))


def searched(task: Task, blank: Searched, tell: Tell) -> Searched:
    soc = load_soc(SOC)
    analysis = Phone(soc).analysis(task.network)
    base = memory_peak_bytes()
    processors = COMBINATIONS[task.combination]
    limits = SegmentLimits(**blank.limits)
    began = time.perf_counter()
    result: SearchResult = search(
        analysis,
        soc,
        processors,
        limits,
        min_macs=task.bound.macs,
        min_params=task.bound.params,
        progress=tell,
    )
    took_s, best = time.perf_counter() - began, result.plans[0]
    return replace(
        blank,
        latency_us=best.trial.latency_us,
        error_us=best.error_us,
        macs=best.trial.macs,
        params=best.trial.params,
        iso_mac_us=best.iso_mac.latency_us,
        iso_mac_processor=best.iso_mac.processor,
        optimal=result.optimal,
        lower_bound_us=result.lower_bound_us,
        search_s=took_s,
        peak_bytes=max(base, memory_peak_bytes()),
        base_bytes=base,
        plan=str(best.trial.plan),
        processors=best.trial.plan.processors,
        meetings=sum(segment.branched for segment in best.trial.plan.segments),
    )


def run(task: Task, limits: Mapping[str, float], allowance: Allowance, tell: Tell) -> Searched:
    """Searches in a fresh process, and stops it where it takes longer than allowed."""
    blank = Searched(
        task.network,
        task.combination,
        task.bound.source,
        dict(limits),
        code_fingerprint(),
        stopped=True,
    )
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(task, limits, allowance.memory_bytes, send))
    began, ended = time.monotonic(), False
    process.start()
    send.close()
    try:
        while True:
            if not receive.poll(max(0.0, allowance.seconds - (time.monotonic() - began))):
                return replace(
                    blank,
                    refusal=f"longer than {allowance.seconds:g} s",
                    search_s=allowance.seconds,
                )
            kind, first, second = receive.recv()
            if kind == "end":
                ended = True
                return Searched(**first)
            tell(first, second)
    except EOFError:
        process.join()
        return replace(
            blank,
            refusal=f"its process died with status {process.exitcode}, memory may have run out",
        )
    finally:
        process.join(GRACE_S if ended else 0)
        process.kill()
        process.join()
