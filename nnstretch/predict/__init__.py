"""What a kernel, a network or a list of operators costs on a chip: from JSON, never from a pickle."""

from nnstretch.predict.analytic import Analytic, Rates
from nnstretch.predict.load import known_socs, load_soc
from nnstretch.predict.ops import predict_ops
from nnstretch.predict.save import save_soc

__all__ = ["Analytic", "Rates", "known_socs", "load_soc", "predict_ops", "save_soc"]
