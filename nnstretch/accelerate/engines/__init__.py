"""From an order of instances to what each engine does when.

program.py       layers and concatenations in order, and their storage
layer_work.py    what one step asks of the engines
tiling.py        tile loops in what live tensors leave
placement.py     addresses, and what is spilled
instructions.py  instructions of every tile by engine
dependencies.py  which instruction waits for which
verify_plan.py   a check that knows nothing of how the plan was made
simulate.py      instructions -> trace
"""
