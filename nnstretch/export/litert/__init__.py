"""Modules become .tflite files, float or int8 with shared scales.

convert.py        module -> .tflite
culprit.py        which operator the converter refuses
runner.py         a .tflite ready to run
int8.py           int8 with shared scales
flatbuffer.py     names and scales in a .tflite
tensor_layout.py  NCHW and NHWC
packages.py       are LiteRT's packages there; their complaints in one line
"""
