"""A lowered plan becomes a torch module with weights inherited from the original.

branched_module.py   torch module of a lowered plan
weights_file.py      weights in safetensors
inheritance.py       initial weights from the original
channel_selection.py original channels that a branch keeps
channel_blocks.py    channels that are kept or dropped together, and blocks of them
initialization.py    random initialization, zero-init residual
reconstruction.py    layer-wise reconstruction against the original (He et al. 2017)
layer_fit.py         fit of one branch's last layers
least_squares.py     ridge regression of last layers
foldable_layers.py   last layers of a branch a fit can be folded into
feature_matching.py  features at meeting points, feature loss
precise_bn.py        precise batch-norm statistics (pycls' term)
"""
