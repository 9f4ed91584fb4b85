"""A network becomes a Graph: from PyTorch, from an ONNX file, from a saved program; and back into a module."""

from nnstretch.capture.build import build
from nnstretch.capture.models import DEFAULT_INPUT, default_input, load_model
from nnstretch.capture.torch_export import Captured, capture, trace
from nnstretch.verbs import callable_verb

callable_verb(__name__)

__all__ = ["DEFAULT_INPUT", "Captured", "build", "capture", "default_input", "load_model", "trace"]
