"""Several plans in one bundle: putting them together, and taking one out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nnstretch.bundle.archive import check_plan_name
from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.bundle.manifest import MAIN, Alternative, Subgraph, all_subgraphs, plans_by_name
from nnstretch.bundle.validate import check_edges
from nnstretch.errors import BadInput, UnknownName
from nnstretch.files.model_text import ModelSpec, parse_model_spec


def load_variants(paths: Sequence[Path | str]) -> tuple[tuple[str, Bundle], ...]:
    """Return every plan of these bundles as a bundle, a main one under its file's name.

    Raises UnknownName, BrokenFile, and BadInput for a name that is taken or is none.
    """
    bundles: dict[str, Bundle] = {}
    for path in map(Path, paths):
        bundle = read_bundle(path)
        for plan in plans_by_name(bundle.manifest):
            name = path.stem if plan == MAIN else plan
            try:
                check_plan_name(name)
            except ValueError as error:
                raise BadInput(f"cannot add {path}, bundle of several plans, {error}") from error
            if name in bundles or name == MAIN:
                raise BadInput(
                    f"cannot add {path}, bundle of several plans, the name {name} is taken, rename"
                    " the file"
                )
            bundles[name] = select_plan(bundle, plan)
    return tuple(bundles.items())


def select_plan(bundle: Bundle, name: str | None) -> Bundle:
    """Return one plan of a bundle as a bundle; the main one for None. Raises UnknownName."""
    views = plans_by_name(bundle.manifest)
    if (name or MAIN) not in views:
        raise UnknownName(f"unknown plan {name!r}, {bundle.name}, it has {', '.join(views)}")
    view = views[name or MAIN]
    return Bundle(view, {sub.file: bundle.files[sub.file] for sub in view.subgraphs}, bundle.name)


def merge_bundles(main: Bundle, others: Sequence[tuple[str, Bundle]]) -> Bundle:
    """Return a bundle with the plans of others; equal files are kept once. Raises BadInput."""
    files = dict(main.files)
    paths = {sub.sha256: sub.file for sub in all_subgraphs(main.manifest)}
    added: list[Alternative] = []
    kinds = dict(main.manifest.processor_kinds)
    for name, another in others:
        check_fit(main, name, another)
        subs: list[Subgraph] = []
        for sub in another.manifest.subgraphs:
            file = paths.setdefault(sub.sha256, f"plans/{name}/{sub.file}")
            subs.append(replace(sub, file=file))
            files[file] = another.files[sub.file]
        added.append(alternative(name, another, tuple(subs)))
        kinds |= another.manifest.processor_kinds
    alternatives = (*main.manifest.alternatives, *added)
    manifest = replace(main.manifest, alternatives=alternatives, processor_kinds=kinds)
    return Bundle(manifest, files, main.name)


def check_fit(main: Bundle, name: str, addition: Bundle) -> None:
    """Refuse a bundle whose network, chip, tensors or images differ from the main one's.

    Weights are not compared: branches were trained apart from the original. Raises BadInput.
    """
    if bare_model(addition.manifest.model) != bare_model(main.manifest.model):
        raise BadInput(
            f"cannot add plan {name} of {addition.name}, {main.name}, its network is"
            f" {addition.manifest.model!r}, the main plan's {main.manifest.model!r}, export both"
            " from one MODEL"
        )
    try:
        check_edges(addition.manifest, main.manifest)
    except ValueError as error:
        raise BadInput(
            f"cannot add plan {name} of {addition.name}, {main.name}, {error}"
        ) from error
    if addition.manifest.soc != main.manifest.soc:
        theirs, ours = (chip or "no chip" for chip in (addition.manifest.soc, main.manifest.soc))
        raise BadInput(
            f"cannot add plan {name} of {addition.name}, {main.name}, it was predicted for"
            f" {theirs}, the main plan for {ours}"
        )
    if addition.manifest.image_task != main.manifest.image_task:
        raise BadInput(
            f"cannot add plan {name} of {addition.name}, {main.name}, it takes images or names"
            " classes otherwise than the main plan, export both with weights of one data set"
        )


def bare_model(model: str) -> ModelSpec:
    """Return a network without the folder of its file."""
    spec = parse_model_spec(model)
    return replace(spec, source=spec.source.rpartition("/")[2])


def alternative(name: str, bundle: Bundle, subgraphs: tuple[Subgraph, ...]) -> Alternative:
    """Return a bundle's plan as an alternative of another bundle."""
    manifest = bundle.manifest
    return Alternative(
        name=name,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        subgraphs=subgraphs,
        max_abs_error=manifest.max_abs_error,
        sync_us=manifest.sync_us,
        plan=manifest.plan,
    )
