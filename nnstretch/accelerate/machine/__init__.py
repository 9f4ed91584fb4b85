"""The machine.

accelerator_file.py  what a description holds
load_accelerator.py  accelerators/NAME.yaml -> Accelerator
rates.py             how long a tile takes on each engine
"""
