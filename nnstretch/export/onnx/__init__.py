"""Modules become ONNX files.

convert.py    module -> ONNX
attention.py  attention in four dimensions
sections.py   network section -> ONNX file
rename_io.py  rename inputs and outputs
"""
