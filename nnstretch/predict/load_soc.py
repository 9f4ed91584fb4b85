"""`latency_predictors/NAME/` -> Soc: `soc.json` and one file per processor, read strictly."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.files.checked import checked
from nnstretch.files.decode import decode, require_format
from nnstretch.files.json_text import read_json
from nnstretch.files.limits import OneOf, shorten
from nnstretch.files.package_data import package_data
from nnstretch.files.read import MOST_JSON_BYTES, as_path, read_bytes
from nnstretch.kernel import MOBILE_FUSION, FusionRules
from nnstretch.predict.fusion_rules_json import rules_of
from nnstretch.predict.predictor_file import (
    CHIP_TYPES,
    PREDICTOR_FORMAT,
    AcceleratorForm,
    AnalyticFile,
    FirstAnalyticFile,
)
from nnstretch.predict.roofline import Roofline
from nnstretch.predict.soc_file import (
    SOC_FORMAT,
    SocFile,
    branched_error_of,
    link_of,
    neighbour_of,
    processor_of,
)
from nnstretch.predictor import Predictor
from nnstretch.soc import Soc


def known_socs() -> tuple[str, ...]:
    """Return chips that ship with the package."""
    paths = package_data("latency_predictors").glob("*/soc.json")
    return tuple(sorted(path.parent.name for path in paths))


@checked
def load_soc(name: str | Path) -> Soc:
    """Load a chip as shipped, from `latency_predictors/` of the working folder, or from any folder.

    Raises UnknownName when there is no such chip; BrokenFile when its files are wrong.
    """
    folder = find_soc(name)
    path = folder / "soc.json"
    try:
        data = read_file(path)
        require_format(data, (SOC_FORMAT,))
        file: SocFile = decode(SocFile, data, "soc")
    except ValueError as error:
        raise BrokenFile(f"{path}, {error}") from None
    loaded = {row.name: load_predictor(folder, row.name, file.dtype) for row in file.processors}
    fusion = {processor: rules for processor, (_, rules) in loaded.items()}
    for row in file.neighbours:
        if row.busy_factor > 1 and not hasattr(loaded[row.processor][0], "beside"):
            raise BrokenFile(
                f"{path}, soc.neighbours, {row.processor} beside {row.beside} has busy_factor"
                f" {row.busy_factor:g}, needed is an analytic predictor of {row.processor}"
            )
    return Soc(
        name=file.name,
        processors=tuple(map(processor_of, file.processors)),
        dtype=file.dtype,
        predictors={processor: predictor for processor, (predictor, _) in loaded.items()},
        merge=link_of(file.merge),
        contention={frozenset(row.processors): row.factor for row in file.contention},
        calibrated=file.calibrated,
        provenance=file.provenance,
        fusion={name: rules for name, rules in fusion.items() if rules != MOBILE_FUSION},
        neighbours=tuple(map(neighbour_of, file.neighbours)),
        branched_error=branched_error_of(file.branched_error),
        folder=str(folder.absolute()),
    )


def soc_sha256(name: str | Path) -> str:
    """Return the hash of the files of a chip, its predictors and the accelerators they describe.

    Raises UnknownName when there is no such chip; BrokenFile when its files are wrong.
    """
    digest = hashlib.sha256()
    folder = find_soc(name)
    files = sorted([*folder.glob("*.json"), *folder.glob("*.yaml")])
    machines = sorted(set(machine_files(name)) - set(files))
    for path in (*files, *machines):
        content = read_bytes(path, "file", MOST_JSON_BYTES)
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def machine_files(name: str | Path) -> tuple[Path, ...]:
    """Return the descriptions of the accelerators among a chip's processors.

    Raises UnknownName when there is no such chip; BrokenFile when its files are wrong.
    """
    from nnstretch.accelerate.machine.load_accelerator import find_accelerator
    from nnstretch.predict.described import described_machines

    soc, folder = load_soc(name), find_soc(name)
    rows = described_machines(soc, tuple(soc.predictors)).values()
    return tuple(find_accelerator(machine_name(row["machine"], folder)) for row in rows)


def find_soc(name: str | Path) -> Path:
    """Return the folder of a chip: of a path with a slash that very folder, such as `./mi9`.

    Raises UnknownName where there is none.
    """
    is_path = os.sep in str(name)
    name = as_path(name, "soc")
    folder = package_data("latency_predictors") / name
    if is_path or str(name) not in known_socs():
        local = (name, Path("latency_predictors") / name)
        complete = (path for path in local if (path / "soc.json").is_file())
        folder = next(complete, name if name.is_dir() else folder)
    if not (folder / "soc.json").is_file():
        known = ", ".join(known_socs()) or "none"
        raise UnknownName(
            f"unknown SoC {str(name)!r}, no soc.json in {folder}, known are {known}, or name a"
            " folder"
        )
    return folder


def read_file(path: Path) -> Any:
    """Read a JSON file. Raises BrokenFile when it is missing or no JSON."""
    try:
        return read_json(path)
    except UnknownName as error:
        if path.exists():
            raise BrokenFile(f"{path}, {error}") from None
        raise BrokenFile(f"file is missing, {path}, soc.json names this processor") from None


def load_predictor(folder: Path, processor: str, dtype: str) -> tuple[Predictor, FusionRules]:
    """Load one processor's predictor and what its backend fuses. Raises BrokenFile."""
    path = folder / f"{processor}.json"
    data = read_file(path)
    try:
        predictor, rules = decode_predictor(data, folder)
    except ValueError as error:
        raise BrokenFile(f"{path}, {error}") from None
    if predictor.processor != processor or data.get("dtype") != dtype:
        raise BrokenFile(
            f"processor {shorten(predictor.processor)} with {shorten(data.get('dtype'))}, {path},"
            f" the chip expects {processor!r} with {dtype!r}"
        )
    return predictor, rules


def decode_predictor(data: Any, folder: Path) -> tuple[Predictor, FusionRules]:
    """Decode the file of a predictor of any form. Raises ValueError."""
    if require_format(data, (1, PREDICTOR_FORMAT)) == 1:
        file: FirstAnalyticFile = decode(FirstAnalyticFile, data, "predictor")
        rates = Roofline(file.processor, file.dtype, file.rates, file.relative_error)
        return rates, MOBILE_FUSION
    if "form" not in data:
        raise ValueError("predictor, key 'form' is missing")
    form = decode(Annotated[str, OneOf(tuple(FORM_READERS))], data["form"], "predictor.form")
    return FORM_READERS[form](data, folder)


def read_analytic(data: Any, folder: Path) -> tuple[Predictor, FusionRules]:
    """Decode the file of an analytic predictor. Raises ValueError."""
    file: AnalyticFile = decode(AnalyticFile, data, "predictor")
    rates = Roofline(file.processor, file.dtype, file.rates, file.relative_error, file.sampled)
    return rates, rules_of(file.fusion)


def read_learned(data: Any, folder: Path) -> tuple[Predictor, FusionRules]:
    """Decode the file of a learned predictor. Raises ValueError."""
    # numpy: only who has such a file needs it
    from nnstretch.predict.learned import Learned
    from nnstretch.predict.learned_json import decode_learned

    file = decode_learned(data)
    families, error = file.model.families, file.relative_error
    learned = Learned(file.processor, file.dtype, families, error, file.noisy)
    return learned, rules_of(file.fusion)


def read_described(data: Any, folder: Path) -> tuple[Predictor, FusionRules]:
    """Decode the file of a processor that a description of an accelerator prices.

    Raises ValueError, and UnknownName, BrokenFile or BadInput for a machine that is not there,
    wrong or incomplete.
    """
    # numpy: only who has such a file needs it
    from nnstretch.accelerate.machine.load_accelerator import load_accelerator, require_type
    from nnstretch.accelerate.machine.rates import ChipRates
    from nnstretch.predict.described import BRANCH_ERROR, DescribedAccelerator

    file: AcceleratorForm = decode(AcceleratorForm, data, "predictor")
    machine = load_accelerator(machine_name(file.accelerator, folder), file.assume)
    rates = ChipRates(machine, require_type(machine, CHIP_TYPES[file.dtype]))
    error = BRANCH_ERROR if file.relative_error is None else file.relative_error
    serial = file.overlap == "none"
    predictor = DescribedAccelerator(
        file.processor, file.dtype, rates, file.accelerator, error, serial
    )
    return predictor, rules_of(file.fusion)


def machine_name(name: str, folder: Path) -> str:
    """Return the name of a shipped accelerator as it is; a file lies in the chip's folder."""
    return str(folder / Path(name).name) if name.endswith((".yaml", ".yml")) else name


FORM_READERS: dict[str, Callable[[Any, Path], tuple[Predictor, FusionRules]]] = {
    "analytic": read_analytic,
    "learned": read_learned,
    "accelerator": read_described,
}
"""By form, what returns the predictor of a file's JSON data and what its backend fuses; the folder
is the chip's, for other files in it."""
