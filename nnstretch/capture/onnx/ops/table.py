"""The rule of each ONNX operator."""

from __future__ import annotations

from nnstretch.capture.onnx.ops.arithmetic import ARITHMETIC_RULES
from nnstretch.capture.onnx.ops.elementwise import ELEMENTWISE_RULES
from nnstretch.capture.onnx.ops.indexing import INDEXING_RULES
from nnstretch.capture.onnx.ops.norms import NORM_RULES
from nnstretch.capture.onnx.ops.products import PRODUCT_RULES
from nnstretch.capture.onnx.ops.resize import RESIZE_RULES
from nnstretch.capture.onnx.ops.shapes import SHAPE_RULES
from nnstretch.capture.onnx.ops.windows import WINDOW_RULES
from nnstretch.capture.onnx.translation_context import TranslationRule

TRANSLATION_RULES: dict[str, TranslationRule] = {
    **WINDOW_RULES,
    **NORM_RULES,
    **PRODUCT_RULES,
    **RESIZE_RULES,
    **SHAPE_RULES,
    **INDEXING_RULES,
    **ELEMENTWISE_RULES,
    **ARITHMETIC_RULES,
}
