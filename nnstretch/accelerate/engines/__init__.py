"""From an order of instances to what each engine does when.

program.py       layers and concatenations in order, and their storage
layer_work.py    what one step asks of the engines
tiling.py        tile loop of a step, sizes of its tiles
slots.py         where the tiles of a loop lie in what live tensors leave
choose_tiling.py the fastest tile loop whose slots fit
placed_program.py  a program with addresses and tile loops
placement.py     addresses, and what is spilled
late_spills.py   spills from an overflow on, and their way back
kept_weights.py  weights that the global buffer keeps between instances
instructions.py  instructions of every tile by engine
dependencies.py  which instruction waits for which
verify_plan.py   a check that knows nothing of how the plan was made
simulate.py      instructions -> trace
engine_use.py    share of the time in which each engine works
"""
