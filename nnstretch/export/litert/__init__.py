"""Modules become .tflite files, float or int8 with shared scales.

convert.py     module -> .tflite
int8.py        int8 with shared scales
flatbuffer.py  names and scales in a .tflite
"""
