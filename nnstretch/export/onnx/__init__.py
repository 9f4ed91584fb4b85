"""Modules become ONNX files.

convert.py       module -> ONNX
attention.py     attention in four dimensions
sections.py      network section -> ONNX file
network_file.py  a network exported once, sections cut from it
rename_io.py     rename inputs and outputs
"""
