"""Latency of kernels, networks and operator lists on a chip, from JSON descriptions, never from a
pickle.

    load_soc.py           latency_predictors/NAME -> Soc
    save_soc.py           Soc -> latency_predictors/NAME
    roofline.py           ten-rate roofline predictor
    sampled_range.py      what was measured, by feature
    learned.py            roofline + boosted trees + interval
    described.py          kernels of a described accelerator
    kernel_family.py      kernels that share one learned model
    learned_json.py       JSON <-> Learned
    boosted_trees.py      tree evaluation without sklearn
    features.py           kernel -> feature table
    fusion_rules_json.py  fusion rules <-> JSON
    soc_file.py           what soc.json holds
    predictor_file.py     what a predictor's file holds
    op_list.py            operator list -> latency
    op_list_csv.py        ops_mi9.csv, row by row
"""

from nnstretch.predict.load_soc import known_socs, load_soc
from nnstretch.predict.op_list import predict_ops
from nnstretch.predict.roofline import Rates, Roofline
from nnstretch.predict.save_soc import save_soc

__all__ = ["Rates", "Roofline", "known_socs", "load_soc", "predict_ops", "save_soc"]
