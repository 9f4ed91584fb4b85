"""A network as two lists of layers, in the form of CEDR's translator: as defined, and as run.

attributes.py         what describes a layer or an operator, as JSON data
definition_order.py   layers in the order in which `__init__` registers them
forward_order.py      layers and operators in the order in which `forward` calls them, with edges
variable_names.py     what `forward` calls the values it assigns
layer_lists.py        both, and their files
"""
