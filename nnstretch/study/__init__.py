"""Studies: many trials of branched networks, predicted, measured or trained, shared by any number of workers.

    space.py       plan <-> parameters, both ways exact
    judge.py       parameters -> a plan with every number predicted, and how far it is from its limits
    objective.py   what a trial is worth: predicted, measured, trained
    setting.py     everything one study depends on, and the proven optimum beside it
    samplers.py    who proposes the next trial
    storage.py     where trials are kept: a journal file, a database, a gRPC proxy
    claims.py      who runs which trial, and what becomes of it when its worker dies
    worker.py      one worker: ask, judge, tell, until the study has its trials
    artifacts.py   plan, trace and picture of a trial, for optuna-dashboard
    result.py      the best trials, and their distance from the optimum

Needs optuna; training, measuring and exporting load theirs when a trial asks for them.
"""
