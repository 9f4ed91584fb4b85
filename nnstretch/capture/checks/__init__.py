"""What a graph cannot say, or says otherwise than the module: found, refused or noted by name.

random_operators.py  what draws random numbers
data_dependent.py    refuse sizes that data decide
autocast_blocks.py   note blocks of lower precision
source_lines.py      the network's own line behind an operator or error
operator_arguments.py  arguments of a call by name
operand_types.py     refuse inputs of another type than the weights they meet
pt2_checks.py        what a .pt2 file may hold
"""
