"""Optional packages: which extra brings which, and the command that brings them.

What the installed distribution says of itself is the one source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from nnstretch.errors import BadInput

DISTRIBUTION = "nnstretch"
VERB_EXTRAS: Mapping[str, str] = {
    "inspect": "capture",
    "import": "capture",
    "profile": "profile",
    "predict": "predict",
    "search": "stretch",
    "study": "study",
    "study capacity": "study",
    "train": "train",
    "quantize": "quantize",
    "export": "export",
    "partition": "partition",
    "run": "run",
    "accelerate": "capture",
    "simulate measure": "run",
    "serve": "serve",
    "simulate sweep": "sweep",
    "bench": "bench",
}
"""By verb, the extra that brings all that it needs; a verb without one needs the base only."""
DISTRIBUTIONS: Mapping[str, str] = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "lightning_fabric": "pytorch-lightning",
    "yaml": "pyyaml",
}
"""Distributions that are not called as the module that they bring."""
REQUIREMENT = re.compile(r"""([A-Za-z0-9_.-]+)(?:\[([^\]]*)\])?.*extra == ['"]([\w-]+)['"]""")


def read_extras(requirements: list[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Return the distributions that each extra brings, those of its own extras among them.

    `requirements` are the lines of a distribution's metadata; without, those of the installed one,
    none where it is not installed.
    """
    if requirements is None:
        try:
            requirements = requires(DISTRIBUTION) or []
        except PackageNotFoundError:
            requirements = []
    direct: dict[str, list[str]] = {}
    nested: dict[str, list[str]] = {}
    for line in requirements:
        if match := REQUIREMENT.match(line):
            name, inner, extra = match.groups()
            direct.setdefault(extra, [])
            if name == DISTRIBUTION:
                nested.setdefault(extra, []).extend(inner.split(","))
            else:
                direct[extra].append(name)
    return {extra: tuple(dict.fromkeys(_closure(extra, direct, nested))) for extra in direct}


def _closure(
    extra: str, direct: Mapping[str, list[str]], nested: Mapping[str, list[str]]
) -> list[str]:
    names = list(direct.get(extra, ()))
    for inner in nested.get(extra, ()):
        names += _closure(inner.strip(), direct, nested)
    return names


def missing_distributions(names: tuple[str, ...]) -> list[str]:
    """Return the distributions that are not installed."""
    missing: list[str] = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


def install_command(extra: str) -> str:
    """Return the command that brings an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def refusal_of(error: ModuleNotFoundError, verb: str) -> BadInput | None:
    """Return the refusal of a verb whose package is missing; None where no extra brings it."""
    module = (error.name or "").partition(".")[0]
    distribution = DISTRIBUTIONS.get(module, module.replace("_", "-"))
    extras = read_extras()
    extra = VERB_EXTRAS.get(verb)
    if extra is None or distribution not in extras.get(extra, ()):
        bringing = [name for name, brought in extras.items() if distribution in brought]
        if not bringing:
            return None
        extra = min(bringing, key=lambda name: len(extras[name]))
    return BadInput(f"{module} is not installed, {verb}, {install_command(extra)}")
