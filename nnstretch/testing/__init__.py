"""Test suites for predictors, backends, policies and data sets to inherit (extra `testing`).

strategies.py       kernels, platforms and task graphs for hypothesis
predictor_suite.py  PredictorSuite: positive, monotone, repeatable estimates
backend_suite.py    BackendSuite, BindableBackendSuite, DeviceBackendSuite: a reference's numbers
policy_suite.py     PolicySuite, PlacingPolicySuite: any DAG on any platform becomes a schedule
dataset_suite.py    DatasetSuite: images that are the same whenever they are read

The guide with a complete example of each: docs/guide/extend.md.
"""

import pytest

# Failing assertions of the suites then show their values, as those of test files do.
pytest.register_assert_rewrite(
    *(f"{__name__}.{kind}_suite" for kind in ("predictor", "backend", "policy", "dataset"))
)
