"""Files of a sweep: the table of means as Markdown, pictures, and the page with both."""

from __future__ import annotations

from pathlib import Path

from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.simulate.sweep_files import PAGES
from nnstretch.files.atomic import write_text
from nnstretch.report.simulations.sweep_data import SweepData
from nnstretch.report.simulations.sweep_page import (
    HEADS,
    cautions,
    failures,
    mean_cells,
    sweep_page,
)
from nnstretch.report.simulations.sweep_pictures import sweep_pictures
from nnstretch.report.style import stand_alone


def write_tables(folder: Path, data: SweepData) -> list[Path]:
    """Write page, table and pictures; return the files."""
    files = [folder / name for name in PAGES]
    cells = [mean_cells(key, data) for key in data.groups]
    lines = ["# Sweep", "", *markdown_table(HEADS, cells), ""]
    for name, drawing in sweep_pictures(data):
        file = folder / f"{name}.svg"
        write_text(file, stand_alone(drawing) + "\n")
        lines += [f"![{name}]({file.name})", ""]
        files.append(file)
    for sentence in (*cautions(data), *failures(data)):
        lines += [sentence, ""]
    write_text(files[0], "\n".join(lines))
    write_text(files[1], sweep_page(data))
    return files
