"""Progress bars on standard error, and warnings above results of uncalibrated or noisy chips."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnstretch.soc import Soc


@contextmanager
def progress_stages(ticking: bool = False) -> Iterator[Any]:
    """Show a bar for work of several stages and yield a function of (what, done, total).

    The bar is redrawn only on a call, since a drawing thread would disturb measurements; `ticking`
    lets its clock run. Nothing is drawn where standard error is no terminal.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if ticking else []),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=ticking,
    ) as bar:
        task = bar.add_task("", total=1)

        def tell(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=max(total, 1e-9), refresh=True)

        yield tell


@contextmanager
def progress(label: str) -> Iterator[Any]:
    """Show a bar for work of one stage and yield a function of (done, total)."""
    with progress_stages(ticking=True) as tell:
        tell(label, 0, 1)
        yield lambda done, total, *_: tell(label, done, total)


def show_machines(result: dict[str, Any], console: Any) -> None:
    """Print which processors are described accelerators, and their assumed values by name."""
    for name, item in result.get("accelerators", {}).items():
        assumed = item["assumed"]
        listed = f": {', '.join(assumed)}" if assumed else ""
        console.print(
            f"{name} is {item['machine']} as described (modelled),"
            f" {len(assumed)} assumed values{listed}"
        )


def calibration_json(soc: Soc) -> dict[str, Any]:
    """Return what a result says of its chip: whether and by what it is calibrated, and noise."""
    return {"calibrated": soc.calibrated, "noisy": soc.noisy, "provenance": soc.provenance}


def warn_uncalibrated(result: dict[str, Any], console: Any) -> None:
    """Warn beside a result's tables that its chip was never measured, or beside other work.

    `calibrated` is None where times are a bundle's, which names its chip and says no more of it.
    """
    if result.get("noisy"):
        console.print(f"[yellow]noisy:[/yellow] {result['noisy']}")
    if result.get("calibrated") is False:
        console.print(
            "[yellow]this chip is not calibrated: numbers derive from public"
            " specifications[/yellow]"
        )
    if result.get("calibrated", True) is None:
        chip = result["predicted_for"] or "a chip without a name"
        console.print(
            f"[yellow]predicted for {chip}; the bundle does not say whether that chip is"
            " calibrated, --soc does[/yellow]"
        )
