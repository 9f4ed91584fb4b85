"""Soc -> `latency_predictors/NAME/`: the files that `load_soc` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.predict.fusion_rules_json import rules_document
from nnstretch.predict.predictor_file import PREDICTOR_FORMAT, UNIT
from nnstretch.predict.roofline import Roofline
from nnstretch.predict.soc_file import soc_document
from nnstretch.predictor import Predictor
from nnstretch.soc import Soc

EXPANDED = 3
"""Levels of a file that have a line for each field; what lies deeper is for programs."""
Parts = tuple[dict[str, Any], float]
"""What a file says of a predictor beside what all say, and its relative error."""


def save_soc(soc: Soc, folder: str | Path) -> None:
    """Write `soc.json` last, so that a folder that has one is complete.

    Raises BadInput for a predictor that has no file form.
    """
    folder = Path(folder)
    names = soc.processor_names
    documents = [predictor_document(soc, name) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in zip(names, documents, strict=True):
        write_text(folder / f"{name}.json", dump_json(document) + "\n")
    write_text(folder / "soc.json", json.dumps(soc_document(soc), indent=2) + "\n")


def predictor_document(soc: Soc, processor: str) -> dict[str, Any]:
    """Return the predictor of a processor as JSON data. Raises BadInput where there is none."""
    predictor = soc.predictors.get(processor)
    if predictor is None:
        raise BadInput(f"no predictor, processor {processor} of SoC {soc.name}, each needs one")
    form, body, relative_error = parts_of(predictor)
    return {
        "format": PREDICTOR_FORMAT,
        "processor": processor,
        "form": form,
        "dtype": soc.dtype,
        "unit": UNIT,
        "relative_error": relative_error,
        "fusion": rules_document(soc.rules(processor)),
        **body,
    }


def parts_of(predictor: Predictor) -> tuple[str, dict[str, Any], float]:
    """Return form, body and error of a predictor. Raises BadInput for one without a file form."""
    for form, write in FORM_WRITERS.items():
        if parts := write(predictor):
            return form, *parts
    raise BadInput(
        f"a {type(predictor).__name__}, processor {predictor.processor}, forms of files are"
        f" {', '.join(FORM_WRITERS)}"
    )


def write_analytic(predictor: Predictor) -> Parts | None:
    """Return body and error of an analytic predictor, None for another."""
    if not isinstance(predictor, Roofline):
        return None
    body: dict[str, Any] = {"rates": asdict(predictor.rates)}
    if predictor.sampled:
        body["sampled"] = dict(predictor.sampled)
    return body, predictor.relative_error


def write_learned(predictor: Predictor) -> Parts | None:
    """Return body and error of a learned predictor, None for another."""
    from nnstretch.predict.learned import Learned  # numpy: only who has such a predictor needs it
    from nnstretch.predict.learned_json import model_document

    if not isinstance(predictor, Learned):
        return None
    noisy: dict[str, Any] = {"noisy": predictor.noisy} if predictor.noisy else {}
    return noisy | {"model": model_document(predictor)}, predictor.relative_error


def write_described(predictor: Predictor) -> Parts | None:
    """Return body and error of a described accelerator, None for another.

    Raises BadInput for one whose description is a file of its own.
    """
    from nnstretch.accelerate.machine.load_accelerator import load_accelerator, require_type
    from nnstretch.accelerate.machine.rates import ChipRates
    from nnstretch.predict.described import DescribedAccelerator
    from nnstretch.predict.predictor_file import CHIP_TYPES

    if not isinstance(predictor, DescribedAccelerator):
        return None
    if predictor.machine.endswith((".yaml", ".yml")):
        raise BadInput(
            f"cannot write {predictor.machine}, processor {predictor.processor}, its description is"
            " a file, copy the chip's folder"
        )
    shipped = load_accelerator(predictor.machine)
    if predictor.rates != ChipRates(shipped, require_type(shipped, CHIP_TYPES[predictor.dtype])):
        raise BadInput(
            f"cannot write {predictor.machine}, processor {predictor.processor}, it differs from"
            " the machine of that name, copy the chip's folder"
        )
    overlap = "none" if predictor.serial else "layers"
    return {"accelerator": predictor.machine, "overlap": overlap}, predictor.relative_error


def dump_json(value: Any, levels: int = EXPANDED, pad: str = "") -> str:
    """Return JSON whose outer levels have a line for each field."""
    if not levels or not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = pad + "  "
    items = value.items()
    fields = [f"{inner}{json.dumps(k)}: {dump_json(item, levels - 1, inner)}" for k, item in items]
    return "{\n" + ",\n".join(fields) + f"\n{pad}}}"


FORM_WRITERS: dict[str, Callable[[Predictor], Parts | None]] = {
    "analytic": write_analytic,
    "learned": write_learned,
    "accelerator": write_described,
}
"""By form, what returns a predictor's own keys of a file and its usual relative error; None for a
predictor of another form."""
