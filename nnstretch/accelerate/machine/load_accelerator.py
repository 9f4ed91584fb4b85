"""`accelerators/NAME.yaml` -> Accelerator, read strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from nnstretch.accelerate.machine.accelerator_file import (
    UNKNOWN,
    AcceleratorFile,
    BufferRow,
    Number,
    Truth,
    entries,
)
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.chip.instances import DDR
from nnstretch.errors import BadInput, BrokenFile, UnknownName, closest
from nnstretch.files.decode import decode, require_format
from nnstretch.files.limits import Only
from nnstretch.files.package_data import package_data
from nnstretch.files.read import as_path, read_text
from nnstretch.files.strict_yaml import parse_yaml

FORMAT = 1
MOST_BYTES = 1 << 20
TRUTHS = {"true": True, "false": False}
LEFT_OUT = Number(1, "count", "left out", "assumed")
WITHOUT_SHARED = ("ddr", "lb")
"""Policies that use the global buffer where it is known, and do without it where it is not."""


def known_accelerators() -> tuple[str, ...]:
    """Return the machines that ship with the package."""
    return tuple(sorted(path.stem for path in package_data("accelerators").glob("*.yaml")))


def load_accelerator(
    name: str,
    assume: Sequence[str] = (),
    policy: str = "graphturbo",
    swept: Sequence[str] = (),
) -> Accelerator:
    """Load a machine as shipped, or from a file.

    `assume` and `swept` are settings `FIELD=VALUE` in the field's own unit. Raises UnknownName,
    BrokenFile, or BadInput for a value that was never published and that the policy needs.
    """
    file = override(read_accelerator(name), assume, "--assume")
    return build_accelerator(override(file, swept, "--sweep"), policy)


def read_accelerator(name: str) -> AcceleratorFile:
    """Read a description. Raises UnknownName without a file, BrokenFile for a wrong one."""
    path = find_accelerator(name)
    text = read_text(path, "accelerator", MOST_BYTES)
    try:
        data = parse_yaml(text, str(path))
        require_format(data, (FORMAT,))
        file: AcceleratorFile = decode(AcceleratorFile, data, "accelerator")
    except ValueError as error:
        raise BrokenFile(f"{path}, {error}") from None
    return file


def find_accelerator(name: str) -> Path:
    """Return the file of a machine.

    Raises UnknownName where there is none, BadInput for what no file can be called.
    """
    path = as_path(name, "accelerator")
    known = known_accelerators()
    if str(name) in known:
        return package_data("accelerators") / f"{name}.yaml"
    if path.suffix in (".yaml", ".yml") and path.exists():
        return path
    name = str(name)
    near = closest(name, list(known)) or f"; known are {', '.join(known)}"
    raise UnknownName(f"unknown accelerator {name!r}, it is no file NAME.yaml either{near}")


def override(file: AcceleratorFile, assume: Sequence[str], option: str) -> AcceleratorFile:
    """Return a description with the fields of an option set, marked as assumed. Raises BadInput."""
    names = dict.fromkeys(optional_counts(file), LEFT_OUT) | dict(entries(file))
    fields = [setting.partition("=")[0] for setting in assume]
    for field in fields:
        if fields.count(field) > 1:
            raise BadInput(f"field {field!r} is set twice, {option}, name each field once")
    for setting in assume:
        if setting == f"fallback={DDR}":
            file = replace(file, fallback=DDR)
            continue
        name = setting.partition("=")[0]
        entry = names.get(name)
        if not isinstance(entry, Number | Truth):
            settable = [key for key, entry in names.items() if isinstance(entry, Number | Truth)]
            near = closest(name, settable) or f"; fields are {', '.join(settable)}"
            raise BadInput(f"unknown field {name!r}, {option} {setting}{near}")
        changed = assumed_entry(entry, setting, option)
        try:
            file = with_entry(file, name.split("."), changed)
        except ValueError as error:
            raise BadInput(f"{error}, {option} {setting:.80}") from None
    return file


def assumed_entry(entry: Number | Truth, setting: str, option: str) -> Number | Truth:
    """Return an entry with the value of a setting, marked as assumed. Raises BadInput for none."""
    name, equals, text = setting.partition("=")
    if isinstance(entry, Truth):
        if text not in TRUTHS:
            raise BadInput(f"{setting!r:.80} says neither, {option}, {name} is true or false")
        return replace(entry, value=TRUTHS[text], kind="assumed", source=option)
    value = parse_value(text, entry) if equals else None
    if value is None or not math.isfinite(value) or value < 0:
        units = " or ".join(units_of(entry))
        raise BadInput(
            f"no number of its unit in {setting!r:.80}, {option}, write {name}=NUMBER in"
            f" {entry.unit}, or with its unit ({units})"
        )
    return replace(entry, value=value, kind="assumed", source=option)


def optional_counts(file: AcceleratorFile) -> tuple[str, ...]:
    """Return the counts that a description may leave out and an option may set."""
    buffers = ["local_buffer"] if file.global_buffer is None else ["local_buffer", "global_buffer"]
    return (*(f"{buffer}.ports" for buffer in buffers), "instructions_in_flight")


def units_of(number: Number) -> tuple[str, ...]:
    """Return the units in which a number may be written."""
    from nnstretch.accelerate.machine.accelerator_file import UNIT_KINDS

    return next((kind for kind in UNIT_KINDS if number.unit in kind), (number.unit,))


def parse_value(text: str, number: Number) -> float | None:
    """Return a value in the number's unit; the text may name another one of the same kind."""
    from nnstretch.accelerate.machine.accelerator_file import UNITS

    for unit in sorted(units_of(number), key=len, reverse=True):
        if text.endswith(unit):
            try:
                return float(text[: -len(unit)]) * UNITS[unit] / UNITS[number.unit]
            except ValueError:
                return None
    try:
        return float(text)
    except ValueError:
        return None


def with_entry(row: Any, path: list[str], value: Number | Truth) -> Any:
    """Return a row with one entry replaced. Raises ValueError where its field forbids the value."""
    if len(path) == 1:
        check_limits(type(row), path[0], value)
        return replace(row, **{path[0]: value})
    inner = with_entry(getattr(row, path[0]), path[1:], value)
    return replace(row, **{path[0]: inner})


def build_accelerator(file: AcceleratorFile, policy: str) -> Accelerator:
    """Return the machine of a description. Raises BadInput for values that it lacks."""
    unknown = [name for name, entry in entries(file) if entry.value == UNKNOWN]
    shared = file.global_buffer
    if policy in WITHOUT_SHARED and any(name.startswith("global_buffer.") for name in unknown):
        shared = None
        unknown = [name for name in unknown if not name.startswith("global_buffer.")]
    if unknown:
        raise BadInput(
            f"{', '.join(unknown)} of {file.name} never published, policy {policy} needs"
            f" {'it' if len(unknown) == 1 else 'them'}, give --assume FIELD=VALUE"
        )
    int8_rate = file.matrix.int8_rate
    rates: Mapping[str, float] = {} if int8_rate is None else {"int8": int8_rate.amount}
    assumed = tuple(name for name, entry in entries(file) if entry.kind == "assumed")
    return Accelerator(
        name=file.name,
        clusters=int(file.clusters.amount),
        cores=int(file.cores.amount),
        clock_hz=file.clock.amount,
        element_types=file.types.value,
        matrix=matrix_unit(file),
        vector=VectorUnit(
            file.vector.lanes.amount, file.vector.simple.amount, file.vector.special.amount
        ),
        local=on_chip_buffer(file.local_buffer),
        ddr=Dram(
            file.ddr.bandwidth.amount,
            file.ddr.both_directions.holds,
            None if file.ddr.size is None else int(file.ddr.size.amount),
        ),
        shared=None if shared is None else on_chip_buffer(shared),
        mesh_bytes_per_s=None if file.mesh is None else file.mesh.bandwidth.amount,
        launch_us=file.kernel_launch.amount,
        instructions_in_flight=count_of(file.instructions_in_flight),
        ddr_fallback=file.fallback == DDR,
        type_rates=rates,
        assumed=assumed,
    )


def on_chip_buffer(row: BufferRow) -> OnChipBuffer:
    """Return a buffer of a description."""
    return OnChipBuffer(int(row.size.amount), row.bandwidth.amount, count_of(row.ports))


def count_of(number: Number | None) -> int:
    """Return a count, 0 where a description leaves it out."""
    return 0 if number is None else int(number.amount)


def matrix_unit(file: AcceleratorFile) -> MatrixUnit:
    """Return the matrix unit of a description; what it leaves out changes nothing."""
    matrix = file.matrix
    return MatrixUnit(
        int(matrix.rows.amount),
        int(matrix.columns.amount),
        matrix.fill.amount,
        1.0 if matrix.positions is None else matrix.positions.amount,
        0.0 if matrix.depthwise is None else matrix.depthwise.amount,
        matrix.whole_tiles is not None and matrix.whole_tiles.holds,
        count_of(matrix.weight_tiles),
    )


def require_type(machine: Accelerator, element_type: str | None) -> str:
    """Return the type to compute in, the first one by default. Raises BadInput."""
    if element_type is None:
        return machine.element_types[0]
    if element_type not in machine.element_types:
        raise BadInput(
            f"no type {element_type}, {machine.name}, it computes in"
            f" {', '.join(machine.element_types)}"
        )
    return element_type


def check_limits(kind: type, name: str, value: Number | Truth) -> None:
    """Check an entry by its field's annotation. Raises ValueError `FIELD is VALUE, WHY`."""
    hint = get_type_hints(kind, include_extras=True)[name]
    arms = (hint, *get_args(hint)) if get_origin(hint) is not Annotated else (hint,)
    for arm in arms:
        for limit in getattr(arm, "__metadata__", ()):
            if isinstance(limit, Only) and not limit.holds(value):
                raise ValueError(f"{name} is {value}, needed is {limit.needed}")
