"""`study` and `study capacity`.

study.py     `study`
capacity.py  `study capacity`
"""
