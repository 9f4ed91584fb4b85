"""Steps of scheduling, one a file, in their order; each is a pure function of what came before.

peak.py           bytes that a group needs at once
split.py          B1: into how many parts, along which dimension
grouping.py       B2: which operators are computed together
worth.py          after B2: groups whose parts do not pay are computed whole
slicing.py        B3: instances of a group, and which needs which
ordering.py       B4: order of instances, depth or breadth first
binding.py        B5: which cores share which dimension; scope of what instances leave
movement.py       B6: concatenations, copies, redistributions between instances
layers.py         C1: operators that one tile loop computes
memory.py         C3: addresses, and spills of what lives longest
"""
