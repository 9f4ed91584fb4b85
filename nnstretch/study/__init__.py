"""Studies: trials of branched networks, predicted, measured or trained, by any number of workers.

    parameters.py      plan <-> Optuna parameters
    evaluate.py        parameters -> evaluated plan
    objective.py       objective values
    short_training.py  training that reports each epoch
    config.py          everything a study depends on
    samplers.py        Optuna samplers and pruners
    storage.py         journal, RDB, gRPC
    trial_leases.py    exactly N trials, heartbeats, retries
    worker.py          Optuna worker
    artifacts.py       plan, trace and picture of a trial
    result.py          best trials, gap
    capacity/          how shallow and narrow branches may be

Needs optuna; training, measuring and exporting load theirs when a trial asks for them.
"""
