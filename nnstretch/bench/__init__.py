"""The original network and its branches against each other on this machine.

    interleaved.py  interleaved rounds
    statistics.py   median, quartiles, sign-test interval
    prepare.py      original and branches as contenders
    same_network.py whether a bundle is of the network that is there now
    contenders.py   original vs branches
    pipelines.py    pipelines against each other
    bench_page.py   results as Markdown / JSON
    cost_meter.py   what tasks take on processors, alone and beside others
    markdown.py     Markdown tables of every page of results
    commands.py     what the commands under scripts/ share

Needs no torch.
"""
