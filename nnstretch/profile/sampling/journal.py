"""What was measured, line by line, so that an interrupted profile goes on where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from nnstretch.errors import BadInput, BrokenFile
from nnstretch.files.atomic import atomic_write
from nnstretch.files.decode import decode
from nnstretch.files.journal import append_rows, decode_row, read_journal, resume_journal
from nnstretch.files.limits import Range
from nnstretch.kernel import Kernel
from nnstretch.profile.activity.noise_tally import NO_NOISE, NoiseTally
from nnstretch.profile.machine import PinnedProcessor
from nnstretch.profile.sampling.sample import Sample
from nnstretch.profile.validation import HeldOutNetwork

FORMAT = 1
NAME = "samples.jsonl"
KERNEL_KEYS = frozenset(field.name for field in fields(Kernel))


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample as the file spells it."""

    kernel: Kernel
    us: tuple[Annotated[float, Range(above=0)], ...]
    reference_us: Annotated[float, Range(0)] = 0.0


@dataclass(frozen=True, slots=True)
class BatchRow:
    """What was measured at once on one cluster."""

    cluster: int
    spent_s: Annotated[float, Range(0)]
    samples: tuple[SampleRow, ...]
    noise: NoiseTally = NO_NOISE
    """What others cost; nobody counted it in files of earlier versions."""
    networks: tuple[HeldOutNetwork, ...] = ()
    """Validated behind the samples before this row."""
    places: tuple[PinnedProcessor, ...] = ()
    """Processors of the chip that was written behind the samples before this row."""


@dataclass(frozen=True, slots=True)
class JournalHead:
    """First line of a journal: what its samples have in common."""

    format: Annotated[int, Range(FORMAT, FORMAT)]
    backend: str
    version: str
    dtype: str
    machine: str
    cores: tuple[tuple[int | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Medley:
    """Samples that were measured in turns."""

    cluster: int
    samples: tuple[Sample, ...]


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
    noise: NoiseTally = NO_NOISE
    """What others cost all runs together."""
    networks: list[HeldOutNetwork] = field(default_factory=list)
    """What all runs validated, in the order in which they did."""
    places: tuple[PinnedProcessor, ...] = ()
    """Processors of the chip beside it; none in files of earlier versions."""
    replaces: bool = False
    """Whether the first row takes the place of an earlier journal and its chip."""

    def spend(self, spent_s: float) -> None:
        """Count time that brought no sample: drawing, probing, looking for doubts.

        It is written with the next batch.
        """
        self.spent_s += spent_s
        self.unwritten_s += spent_s

    def append(
        self,
        cluster: int,
        samples: list[Sample],
        spent_s: float,
        noise: NoiseTally = NO_NOISE,
    ) -> None:
        """Append samples. Raises BadInput when the file cannot be written."""
        self.spend(spent_s)
        self.noise += noise
        row: dict[str, Any] = {
            "cluster": cluster,
            "spent_s": round(self.unwritten_s, 4),
            "samples": [sample_row(sample) for sample in samples],
        }
        if noise != NO_NOISE:
            row["noise"] = {name: round(amount, 4) for name, amount in asdict(noise).items()}
        self.unwritten_s = 0.0
        self.write(row)

    def append_networks(self, networks: Sequence[HeldOutNetwork]) -> None:
        """Append networks that were validated. Raises BadInput when the file cannot be written."""
        self.networks += networks
        validated = [asdict(network) for network in networks]
        if validated:
            self.write({"cluster": 0, "spent_s": 0.0, "samples": [], "networks": validated})

    def append_places(self, places: Sequence[PinnedProcessor]) -> None:
        """Append the processors of the chip, where they are others than before.

        Raises BadInput when the file cannot be written.
        """
        if tuple(places) != self.places:
            self.places = tuple(places)
            placed = [asdict(place) for place in places]
            self.write({"cluster": 0, "spent_s": 0.0, "samples": [], "places": placed})

    def write(self, row: dict[str, Any]) -> None:
        """Write a row, behind the head where it is the first."""
        head = {"format": FORMAT} | self.head
        if self.replaces:
            with atomic_write(self.path) as aside:
                append_rows(aside, [head, row])
                remove_chip(self.path.parent)  # no chip stands beside kernels of another journal
            self.replaces = False
            return
        is_first = not self.path.exists() or not self.path.stat().st_size
        append_rows(self.path, [head, row] if is_first else [row])


def sample_row(sample: Sample) -> dict[str, Any]:
    """Return a sample as JSON data."""
    times = [round(us, 2) for us in sample.latencies_us]
    return {
        "kernel": asdict(sample.kernel),
        "us": times,
        "reference_us": round(sample.reference_us, 2),
    }


def open_journal(
    folder: Path, head: dict[str, Any], fresh: bool = False
) -> tuple[ProfileJournal, dict[int, list[Sample]]]:
    """Open the journal of a folder; return it and its samples by cluster, none where there is no
    file.

    A fresh one reads nothing, and its first row replaces the file. Raises BrokenFile where the file
    belongs to another backend, version or machine, or is none of ours.
    """
    path = folder / NAME
    journal = ProfileJournal(path, head, replaces=fresh)
    samples_by_cluster: dict[int, list[Sample]] = {}
    rows = [] if fresh else resume_journal(path)
    if not rows:
        return journal, samples_by_cluster
    for key, value in ({"format": FORMAT} | head).items():
        if rows[0].get(key) != value:
            raise BrokenFile(
                f"{key} is {rows[0].get(key)!r}, {path} line 1, this profile has {value!r}; take"
                " another folder or --fresh"
            )
    for at, row in enumerate(rows[1:], 2):
        batch = decode_row(BatchRow, without_unknown(row), path, at)
        samples_by_cluster.setdefault(batch.cluster, []).extend(samples_of(batch))
        journal.spent_s += batch.spent_s
        journal.noise += batch.noise
        journal.networks += batch.networks
        journal.places = batch.places or journal.places
    return journal, samples_by_cluster


def samples_of(batch: BatchRow) -> tuple[Sample, ...]:
    """Return the samples of a row."""
    return tuple(Sample(entry.kernel, entry.us, entry.reference_us) for entry in batch.samples)


def read_medleys(path: Path) -> tuple[JournalHead, list[Medley]]:
    """Read a journal of any backend and machine, medley by medley.

    Raises BrokenFile where it is none of ours.
    """
    rows = read_journal(path)
    if not rows:
        raise BrokenFile(f"no line, {path}, a journal begins with its head")
    head: JournalHead = decode_row(JournalHead, rows[0], path, 1)
    medleys = []
    for at, row in enumerate(rows[1:], 2):
        batch = decode_row(BatchRow, without_unknown(row), path, at)
        if not all(entry.us for entry in batch.samples):
            raise BrokenFile(f"a sample without rounds, {path} line {at}, each has some")
        if batch.samples:
            medleys.append(Medley(batch.cluster, samples_of(batch)))
    return head, medleys


def without_unknown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without what earlier versions wrote of a kernel and nobody reads any more."""
    samples = row.get("samples")
    if not isinstance(samples, list):
        return row
    for sample in samples:
        if isinstance(sample, dict) and isinstance(sample.get("kernel"), dict):
            known = {key: item for key, item in sample["kernel"].items() if key in KERNEL_KEYS}
            sample["kernel"] = known
    return row


def decode_kernels(data: Any) -> tuple[Kernel, ...]:
    """Decode a list of kernels. Raises ValueError."""
    kernels: tuple[Kernel, ...] = decode(tuple[Kernel, ...], data, "kernels")
    return kernels


def remove_chip(folder: Path) -> None:
    """Remove the chip of a folder and its card. Raises BadInput."""
    for name in ("soc.json", "CARD.md"):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot remove {folder / name}, {error.strerror}, --fresh asks for it"
            ) from None
