"""The page of the exchange experiment, from whatever its journal has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from equal_latency import CHIP, MACS_AT_MOST_FORKS, SIDE_PX, TEAM, ForkSearch
from exchange_picture import ForkMark, ForkPanel, fork_picture
from exchange_trainings import DIVISOR, FORKS, IMAGE_PX, KEYS, TITLES, Exchange, Training
from glyphs import HELD_OUT_FONTS, TRAIN_FONTS, names

from nnstretch.bench.markdown import markdown_table
from nnstretch.report.html import Markup
from nnstretch.stretch import read_plan

TEXT = """# What forks that exchange are worth: accuracy at one latency

Made by `{command}`.

Between two meeting points branches do not see each other's features. Here plans of {fork_counts} forks are compared
that have the same predicted latency on {chip}'s {team}: what a meeting point costs in time is paid in MACs, of all plans with
the forks the one of most MACs within the latency is taken, and the latency is what the most forks need for {least:g} of the
original's MACs. Limits and merges are the search's defaults (parameters at most 1.5 times). Where the fastest plan meets more often
than asked, forks in a row from the input are tried at every choice of cuts. ResNet-18's limits leave seven forks at most.
{chip}'s predictor is searched at full width at {side} px (as many pixels at every stage as the stock networks have at 224); trained
is the network of the plan with every channel number over {divisor}, at {image} px, from scratch, all by one recipe
(`shapes` with `{keys}`), {epochs} epochs.

The task: {classes} Chinese characters, drawn once at {image} px in {train_fonts} fonts to train on and {held_fonts} others, which no training
sees, to be judged by ({held_images} images; one is {one_image:.3f} points). Similarity is linear centered kernel alignment (CKA)
of the branches' outputs at a meeting point on held-out images, 1 where they say the same; the mean over meeting points.

![accuracy and latency by forks](exchange.svg)

## Accuracy at one latency

{accuracy}

{missing}

## What forks cost in speed

The fastest plan of so many forks at least, without a limit on MACs; beside it what the original takes on its fastest processor.

{speed}

## What follows

{verdict}

## Fonts

Debian's packages. To train on: {train_packages}.

Held out: {held_packages}.

## Every training

{every}

{hours}
"""


FEWEST_FORKS = """**Recommended: the search's default, `--min-meetings 0`.** Both networks are most accurate with the fewest forks: at one
latency, forks that exchange features are not worth what they cost. Branches that meet often say nearly the same (similarity
above), and what a meeting point costs in time is taken from their work. What this does not show: all networks train from
scratch for few epochs, which favours those that learn fast; plans of the most forks also have the fewest MACs. Plans that
inherit weights and are distilled, larger images and other tasks may differ."""


@dataclass(frozen=True)
class Prediction:
    """What the predictor says about the plans of one network."""

    original_ms: float
    equal: dict[int, tuple[float, float, float]]
    """By forks: ms, MACs and parameters over the original's, at one latency."""
    fastest: dict[int, tuple[float, float]]
    """By forks at least: ms and MACs over the original's of the fastest plan."""


def predictions(exchange: Exchange, rows: Sequence[Training]) -> dict[str, Prediction]:
    """Predict the plans of networks that were trained, and the fastest of each number of forks."""
    trained = {row.network for row in rows}
    return {network: prediction(exchange, network) for network in FORKS if network in trained}


def prediction(exchange: Exchange, network: str) -> Prediction:
    """Predict the plans of one network."""
    search = ForkSearch(exchange.model(network))
    graph, equal, fastest = search.graph, {}, {}
    for count in FORKS[network][1:]:
        trial = search.estimate(read_plan(exchange.plan_path(network, count)))
        shares = trial.macs / graph.macs, trial.params / graph.params
        equal[count] = (trial.latency_us / 1000, *shares)
        quickest = search.fastest(0.0, count)
        if quickest is not None:
            fastest[count] = quickest.latency_us / 1000, quickest.macs / graph.macs
    return Prediction(search.original_us() / 1000, equal, fastest)


def accuracies(rows: Sequence[Training], network: str, count: int) -> list[float]:
    """Return held-out accuracies by seed, %."""
    chosen = [row for row in rows if (row.network, row.forks) == (network, count)]
    return [100 * row.accuracy for row in sorted(chosen, key=lambda row: row.seed)]


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    if not values:
        return "not trained"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def accuracy_table(rows: Sequence[Training], predicted: dict[str, Prediction]) -> list[str]:
    """Return the table of accuracies at one latency."""
    lines = []
    for network, told in predicted.items():
        for count in FORKS[network]:
            ms, macs, params = told.equal.get(count, (told.original_ms, 1.0, 1.0))
            values = accuracies(rows, network, count)
            chosen = [row for row in rows if (row.network, row.forks) == (network, count)]
            alike = [mean(row.similarity) for row in chosen if row.similarity]
            cells = (f"{ms:.2f}", f"{macs:.3f}x", f"{params:.3f}x", spread(values), len(values))
            similar = f"{mean(alike):.2f}" if alike else ""
            lines.append((TITLES[network], count or "original", *cells, similar))
    heads = ("network", "forks", "predicted ms", "MACs", "parameters", "accuracy, %", "seeds")
    return markdown_table((*heads, "similarity of branches"), lines)


def speed_table(predicted: dict[str, Prediction]) -> list[str]:
    """Return the table of the fastest plans."""
    lines = []
    for network, told in predicted.items():
        least = min(ms for ms, _ in told.fastest.values())
        for count, (ms, macs) in told.fastest.items():
            speedup = f"{told.original_ms / ms:.2f}x"
            slower = f"{100 * (ms / least - 1):+.1f}%"
            lines.append((TITLES[network], count, f"{ms:.2f}", f"{macs:.3f}x", speedup, slower))
    heads = ("network", "forks at least", "predicted ms", "MACs", "over the original", "slower")
    return markdown_table(heads, lines)


def every_training(rows: Sequence[Training]) -> list[str]:
    """Return a row for every training."""
    lines = []
    for row in sorted(rows, key=lambda row: (row.network, row.forks, row.seed)):
        work = f"{row.macs / 1e6:.2f}", f"{row.params / 1e3:.0f}"
        alike = " ".join(f"{value:.2f}" for value in row.similarity)
        name = TITLES[row.network], row.forks or "original", row.seed
        lines.append((*name, f"{100 * row.accuracy:.2f}", *work, f"{row.seconds:.0f}", alike))
    heads = ("network", "forks", "seed", "accuracy, %", "MMAC", "thousand parameters", "s")
    return markdown_table((*heads, "similarity by meeting point"), lines)


def missing_words(rows: Sequence[Training], seeds: int) -> str:
    """Return what is not trained yet."""
    wanted = seeds * sum(map(len, FORKS.values()))
    if len(rows) == wanted:
        return f"All {wanted} trainings are in."
    return (
        f"{len(rows)} of {wanted} trainings are in; the others go on from the journal by the same"
        " command. Means are over the seeds that are there: a row of fewer than three says little."
    )


def picture(rows: Sequence[Training], predicted: dict[str, Prediction]) -> Markup:
    """Draw accuracy at one latency above the fastest latency, a column for each network."""
    upper, lower = [], []
    for network, told in predicted.items():
        marks = []
        for count in FORKS[network]:
            values = tuple(accuracies(rows, network, count))
            ms, macs, _ = told.equal.get(count, (told.original_ms, 1.0, 1.0))
            below = (f"{ms:.1f} ms", f"{macs:.2f}x")
            if values:
                marks.append(ForkMark(str(count) if count else "original", below, values))
        if marks:
            words = "held-out accuracy, % (below: predicted ms, MACs)"
            upper.append(ForkPanel(TITLES[network], words, tuple(marks)))
        speeds = told.fastest.items()
        times = [ForkMark(str(n), (f"{macs:.2f}x",), (ms,)) for n, (ms, macs) in speeds]
        words = "fastest plan, predicted ms (below: MACs)"
        lower.append(ForkPanel(TITLES[network], words, tuple(times)))
    return fork_picture([panels for panels in (upper, lower) if panels])


def page(
    exchange: Exchange,
    rows: Sequence[Training],
    predicted: dict[str, Prediction],
    seeds: int,
    command: str,
) -> str:
    """Return the page."""
    held_images = exchange.classes * len(names(HELD_OUT_FONTS))
    hours = sum(row.seconds for row in rows) / 3600
    return TEXT.format(
        command=command,
        fork_counts="1, 2, 4 and 8",
        chip=CHIP,
        team=" and ".join(TEAM),
        least=MACS_AT_MOST_FORKS,
        side=SIDE_PX,
        divisor=DIVISOR,
        image=IMAGE_PX,
        keys=" ".join(KEYS),
        epochs=exchange.epochs,
        classes=exchange.classes,
        train_fonts=len(names(TRAIN_FONTS)),
        held_fonts=len(names(HELD_OUT_FONTS)),
        held_images=held_images,
        one_image=100 / held_images,
        accuracy="\n".join(accuracy_table(rows, predicted)),
        missing=missing_words(rows, seeds),
        speed="\n".join(speed_table(predicted)),
        verdict=verdict(rows, predicted),
        train_packages=", ".join(sorted(TRAIN_FONTS)),
        held_packages=", ".join(sorted(HELD_OUT_FONTS)),
        every="\n".join(every_training(rows)),
        hours=f"{len(rows)} trainings took {hours:.1f} hours, one thread each, by the clock, on a host that others kept busy and where they stood still at times.",
    )


def enough_seeds(rows: Sequence[Training], predicted: Collection[str]) -> bool:
    """Return whether every network was trained with three seeds at least for each of its forks."""
    seeds = Counter((row.network, row.forks) for row in rows)
    return all(seeds[network, forks] >= 3 for network in predicted for forks in FORKS[network])


def verdict(rows: Sequence[Training], predicted: dict[str, Prediction]) -> str:
    """Return what the differences between numbers of forks say, beside how far seeds spread."""
    lines, fewest = list[str](), list[bool]()
    for network, told in predicted.items():
        means = {n: mean(v) for n in told.equal if (v := accuracies(rows, network, n))}
        if not means:
            continue
        best = max(means, key=lambda count: means[count])
        against = ", ".join(f"{n}: {means[n] - means[best]:+.2f}" for n in means if n != best)
        costs = told.fastest.get(best)
        least = min(ms for ms, _ in told.fastest.values())
        slower = ""
        if costs is not None:
            longer = 100 * (costs[0] / least - 1)
            slower = (
                f" The fastest plan of so many takes {longer:.1f}% longer than the fastest of all."
            )
        forks = "one fork" if best == 1 else f"{best} forks"
        lines.append(
            f"- {TITLES[network]}: most accurate at one latency is the plan of {forks}; points"
            f" of others against it, by forks: {against or 'none trained'}.{slower}"
        )
        fewest.append(best == min(means) < max(means))
    if rows and not enough_seeds(rows, predicted):
        few = "By so few seeds this may be chance, and no default follows from it:"
        lines = [few, "", *lines]
    elif set(predicted) == set(FORKS) and len(fewest) == len(FORKS) and all(fewest):
        lines += ["", FEWEST_FORKS]
    return "\n".join(lines) or "Nothing is trained yet."
