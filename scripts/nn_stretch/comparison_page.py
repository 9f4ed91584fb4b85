"""The page of the comparison: rows as Markdown tables, geometric means, meaning of every column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from comparison_rows import Original, Published, Row, at_all
from comparison_tables import comparison, means, original_table, published, scale, sums

COMMAND = "python scripts/nn_stretch --out docs/results/reproduce_nn_stretch.md"


@dataclass(frozen=True, slots=True)
class Results:
    """All that a page shows."""

    originals: tuple[Original, ...]
    published: tuple[Published, ...]
    rows: tuple[Row, ...]
    limits: Mapping[str, float]
    changed_limits: bool
    old_rows: int
    """Rows kept from a journal although code or data changed since."""
    provenance: str


MEANING = """\
Every latency is predicted by `mi9` unless its column says measured. Nothing here was measured by this project; measured is the
minimum of 50 runs that the authors of NN-Stretch published. C = cpu, G = gpu, D = dsp.

- **found**: the fastest plan with at least the MACs and at least the parameters of the published plan, in the space of
  `nnstretch search`. Where no plan of a combination is in the data, the bound is that of the nearest plan of the network: as many
  processors, then most in common, then most MACs. One R-50 search asks for all MACs of the original and any parameters.
- **± **: root-mean-square error of the predictor on whole networks. A found plan was chosen by the predictor, so its error leans towards
  being slower than predicted.
- **vs fastest alone**: the original on the fastest processor of the combination, over the plan. **vs phone's fastest**: on the fastest of all
  three.
- **vs equal MACs**: a single-branch network of the found plan's MACs, every width alike, on its fastest processor, over the plan.
- **limit**: the sum over the combination's processors of (original on the fastest / original on this one), over the MACs of the plan
  relative to the original: the speed-up of a plan that delivers every processor's own rate at once and pays nothing to meet. It is a scale
  and no strict bound: a layer may run at a better rate than the original's average. **share of limit**: vs fastest alone, over it.
- **branched segments**: of the published / of the found plan. Fewer cost less to meet in; nothing here says what that does to accuracy.
- **proof**: optimal, or how much faster a better plan could be at most.
- **peak GB**: of the process of the search, and before the search began (PyTorch and the captured network).

EN-B5 is priced with its squeeze-and-excitation and its SiLU; the measured networks were deployed without the former, and the chip's
card has no such measurement. Its predicted rows can be compared with each other, not with measured ones. Some published plans run stem
and head on a processor that their name leaves out; a search stays on the processors of its combination. The published G+D plans
of R-34, R-50, RX-4, EN-L4 and EN-B5 are their C+G plans with other names, so a large gain is expected there."""


def page(results: Results) -> str:
    limits = ", ".join(f"{name} {value:g}" for name, value in results.limits.items())
    notes = [
        f"Limits of the search: {limits}"
        f"{' (changed by --limits)' if results.changed_limits else ' (the defaults)'}."
    ]
    if results.old_rows:
        notes.append(
            f"{results.old_rows} rows were searched by other code or on other data than the rest of"
            " this page."
        )
    missing = sum(row.searched is None for row in results.rows)
    if missing:
        notes.append(f"{missing} of {len(results.rows)} rows are not searched yet.")
    return "\n".join(
        [
            *("# Published NN-Stretch plans against searched ones", "", f"`{COMMAND}`", ""),
            *(MEANING, "", *notes, ""),
            *("## Originals", "", *original_table(results.originals), ""),
            *("## Published and found", "", *comparison(results.rows), ""),
            *("## Geometric means", "", *means([r for r in results.rows if not at_all(r)]), ""),
            *("## Sum of rates at equal MACs", "", *sums(results.originals), ""),
            *scale(results.rows),
            *("## Published plans", "", *published(results.published, results.originals), ""),
            *(f"Source: {results.provenance}", ""),
        ]
    )
