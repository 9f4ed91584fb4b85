"""What a file with the predictor of one processor holds.

Format 1 holds analytic predictors without units or fusion rules: microseconds, bytes, and the rules
`mobile`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from nnstretch.files.limits import Length, OneOf
from nnstretch.predict.fusion_rules_json import NamedOrRow
from nnstretch.predict.roofline import Rates
from nnstretch.predict.sampled_range import Ranges, RelativeError

PREDICTOR_FORMAT = 2
UNIT = {"latency": "us", "size": "bytes"}
CHIP_TYPES = {"int8": "int8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
"""Names of element types in descriptions of accelerators."""


@dataclass(frozen=True, slots=True)
class FileUnits:
    """Units of a file; nobody writes others on purpose."""

    latency: Annotated[str, OneOf((UNIT["latency"],))]
    size: Annotated[str, OneOf((UNIT["size"],))]


@dataclass(frozen=True, slots=True)
class FirstAnalyticFile:
    """A file of format 1."""

    format: int
    processor: str
    form: Annotated[str, OneOf(("analytic",))]
    dtype: str
    relative_error: RelativeError
    rates: Rates


@dataclass(frozen=True, slots=True)
class AnalyticFile:
    """A file with an analytic predictor."""

    format: int
    processor: str
    form: Annotated[str, OneOf(("analytic",))]
    dtype: str
    unit: FileUnits
    relative_error: RelativeError
    fusion: NamedOrRow
    rates: Rates
    sampled: Annotated[dict[str, Ranges], Length(0, 200)] = field(default_factory=dict)
    """What was measured, by kind of kernel; empty where nobody wrote it down."""


@dataclass(frozen=True, slots=True)
class AcceleratorForm:
    """A file with a processor that a description of an accelerator prices."""

    format: int
    processor: str
    form: Annotated[str, OneOf(("accelerator",))]
    dtype: Annotated[str, OneOf(tuple(CHIP_TYPES))]
    unit: FileUnits
    accelerator: Annotated[str, Length(1, 200)]
    """A name under `accelerators/`, or a file NAME.yaml or NAME.yml in the chip's folder."""
    relative_error: RelativeError | None = None
    """Of sums of kernels against whole branches; None for that of the shipped machines."""
    fusion: NamedOrRow = "mobile"
    assume: Annotated[tuple[Annotated[str, Length(1, 200)], ...], Length(0, 60)] = ()
    """Settings FIELD=VALUE of values that nobody published."""
    overlap: Annotated[str, OneOf(("none", "layers"))] = "layers"
    """Whether transfers run beside computations."""
