"""Modules become ONNX files.

convert.py    module -> ONNX
sections.py   network section -> ONNX file
rename_io.py  rename inputs and outputs
"""
