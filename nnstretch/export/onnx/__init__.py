"""Modules become ONNX files.

convert.py          module -> ONNX
attention.py        attention in four dimensions
operator_tables.py  the exporter's tables, kept between exports
sections.py         network section -> ONNX file
network_file.py     a network exported once, sections cut from it
rename_io.py        rename inputs and outputs
"""
