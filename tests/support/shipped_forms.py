"""Kernels that the shipped predictors answer for, as far as it can be read off them."""

from __future__ import annotations

from nnstretch.predict.learned import KernelFamily, Learned
from nnstretch.predict.roofline import KINDS, Roofline
from nnstretch.testing.strategies import KernelForm

OPS = {
    "conv": "conv2d",
    "gconv": "conv2d",
    "dwconv": "conv2d",
    "linear": "linear",
    "matmul": "matmul",
    "pool": "max_pool2d",
    "gap": "mean",
    "add": "add",
    "mul": "mul",
    "concat": "cat",
    "norm": "layer_norm",
    "activation": "relu",
    "softmax": "softmax",
    "reshape": "permute",
}
WINDOWED = ("conv", "gconv", "dwconv", "pool")


def forms_of(predictor: Roofline | Learned) -> tuple[KernelForm, ...]:
    """Return the forms of all kinds that a predictor was measured on."""
    forms: list[KernelForm] = []
    if isinstance(predictor, Roofline):
        for kind in sorted(KINDS & OPS.keys()):
            forms.append(KernelForm(kind, OPS[kind], 3 if kind in WINDOWED else 1))
        return tuple(forms)
    for name, family in predictor.families.items():
        forms += family_forms(name, family)
    return tuple(forms)


def family_forms(name: str, family: KernelFamily) -> list[KernelForm]:
    """Return the forms of one family, named `KIND[1x1][.LAYOUT]`."""
    full, _, layout = name.partition(".")
    kind = full.removesuffix("1x1")
    if kind not in OPS or layout == "narrow":
        return []
    window = 3 if kind in WINDOWED and full == kind else 1
    forms = [KernelForm(kind, op, window, layout) for op in family.ops]
    for follower in family.followers:
        if follower != "add":
            forms.append(KernelForm(kind, family.ops[0], window, layout, (follower,)))
    return forms
