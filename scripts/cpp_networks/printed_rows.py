"""The rows of a page that was written before: as exact as they are printed."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

from cpp_trial import NetworkRow

PRINTED = tuple(field.name for field in fields(NetworkRow))[:13]
"""What the columns of the table hold, in order."""
OWN_ERROR = re.compile(r"- (\S+): PyTorch's own answers differ from those in float64 by (\S+)")


def read_printed(page: Path) -> dict[str, NetworkRow]:
    """Return the rows of a page by their network, none where there is no page."""
    rows: dict[str, NetworkRow] = {}
    for line in page.read_text(encoding="utf-8").splitlines() if page.is_file() else ():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        own_error = OWN_ERROR.match(line)
        if own_error:
            rows[own_error[1]] = replace(rows[own_error[1]], own_error=float(own_error[2]))
        elif ":" not in cells[0] or not line.startswith("| "):
            continue
        elif len(cells) == len(PRINTED):
            numbers = (int(cells[1]), int(cells[2]), *map(float, cells[3:]))
            rows[cells[0]] = NetworkRow(cells[0], *numbers)
        elif len(cells) == 2:
            rows[cells[0]] = NetworkRow(cells[0], reason=cells[1])
    return rows
