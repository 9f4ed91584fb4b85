"""The original network and its branches against each other on this machine.

    interleaved.py  interleaved rounds
    statistics.py   median, quartiles, sign-test interval
    contenders.py   original vs branches
    pipelines.py    pipelines against each other
    markdown.py     results as Markdown / JSON

Needs no torch.
"""
