"""The original network and its branches against each other on this machine, fairly.

    rounds.py      who competes takes turns, round after round
    spread.py      medians, quartiles, speed-ups with their intervals
    contenders.py  a network on one core and on all, its branches one after another and at once
    pipelines.py   candidates of a pipeline's split
    page.py        the result as a page

Loads sub-graphs as `nnstretch.run` does; needs no torch.
"""
