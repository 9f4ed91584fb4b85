"""Messages of an ONNX file as far as a bundle's sub-graphs have them, by field number.

Source: onnx.proto of ONNX 1.23 (IR version 14). Sparse tensors, functions and training are listed
so that they are refused by name; fields of newer versions are unknown here and refused.
"""

from __future__ import annotations

from nnstretch.bundle.model_files.protobuf import Kind, Schema

MODEL: Schema = {
    1: ("ir_version", Kind.INTEGER),
    2: ("producer_name", Kind.BYTES),
    3: ("producer_version", Kind.BYTES),
    4: ("domain", Kind.BYTES),
    5: ("model_version", Kind.INTEGER),
    6: ("doc_string", Kind.BYTES),
    7: ("graph", Kind.BYTES),
    8: ("opset_import", Kind.REPEATED_BYTES),
    14: ("metadata_props", Kind.REPEATED_BYTES),
    20: ("training_info", Kind.REPEATED_BYTES),
    25: ("functions", Kind.REPEATED_BYTES),
    26: ("configuration", Kind.REPEATED_BYTES),
}
OPSET: Schema = {1: ("domain", Kind.BYTES), 2: ("version", Kind.INTEGER)}
GRAPH: Schema = {
    1: ("node", Kind.REPEATED_BYTES),
    2: ("name", Kind.BYTES),
    5: ("initializer", Kind.REPEATED_BYTES),
    10: ("doc_string", Kind.BYTES),
    11: ("input", Kind.REPEATED_BYTES),
    12: ("output", Kind.REPEATED_BYTES),
    13: ("value_info", Kind.REPEATED_BYTES),
    14: ("quantization_annotation", Kind.REPEATED_BYTES),
    15: ("sparse_initializer", Kind.REPEATED_BYTES),
    16: ("metadata_props", Kind.REPEATED_BYTES),
}
NODE: Schema = {
    1: ("input", Kind.REPEATED_BYTES),
    2: ("output", Kind.REPEATED_BYTES),
    3: ("name", Kind.BYTES),
    4: ("op_type", Kind.BYTES),
    5: ("attribute", Kind.REPEATED_BYTES),
    6: ("doc_string", Kind.BYTES),
    7: ("domain", Kind.BYTES),
    8: ("overload", Kind.BYTES),
    9: ("metadata_props", Kind.REPEATED_BYTES),
}
ATTRIBUTE: Schema = {
    1: ("name", Kind.BYTES),
    2: ("f", Kind.FIXED),
    3: ("i", Kind.INTEGER),
    4: ("s", Kind.BYTES),
    5: ("t", Kind.BYTES),
    6: ("g", Kind.BYTES),
    7: ("floats", Kind.FIXED),
    8: ("ints", Kind.INTEGERS),
    9: ("strings", Kind.REPEATED_BYTES),
    11: ("graphs", Kind.REPEATED_BYTES),
    13: ("doc_string", Kind.BYTES),
    20: ("type", Kind.INTEGER),
}
ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}
"""By the attribute's type, the field that holds its value."""
TENSOR: Schema = {
    1: ("dims", Kind.INTEGERS),
    2: ("data_type", Kind.INTEGER),
    4: ("float_data", Kind.PACKED),
    5: ("int32_data", Kind.PACKED),
    7: ("int64_data", Kind.PACKED),
    8: ("name", Kind.BYTES),
    9: ("raw_data", Kind.BYTES),
    10: ("double_data", Kind.PACKED),
    11: ("uint64_data", Kind.PACKED),
    12: ("doc_string", Kind.BYTES),
    13: ("external_data", Kind.REPEATED_BYTES),
    14: ("data_location", Kind.INTEGER),
    16: ("metadata_props", Kind.REPEATED_BYTES),
}
VALUE: Schema = {
    1: ("name", Kind.BYTES),
    2: ("type", Kind.BYTES),
    3: ("doc_string", Kind.BYTES),
    4: ("metadata_props", Kind.REPEATED_BYTES),
}
TYPE: Schema = {1: ("tensor_type", Kind.BYTES), 6: ("denotation", Kind.BYTES)}
TENSOR_TYPE: Schema = {1: ("elem_type", Kind.INTEGER), 2: ("shape", Kind.BYTES)}
SHAPE: Schema = {1: ("dim", Kind.REPEATED_BYTES)}
DIMENSION: Schema = {
    1: ("dim_value", Kind.INTEGER),
    2: ("dim_param", Kind.BYTES),
    3: ("denotation", Kind.BYTES),
}
ELEMENT_TYPES = {
    1: ("float32", 4, "float_data"),
    2: ("uint8", 1, "int32_data"),
    3: ("int8", 1, "int32_data"),
    4: ("uint16", 2, "int32_data"),
    5: ("int16", 2, "int32_data"),
    6: ("int32", 4, "int32_data"),
    7: ("int64", 8, "int64_data"),
    9: ("bool", 1, "int32_data"),
    10: ("float16", 2, "int32_data"),
    11: ("float64", 8, "double_data"),
    12: ("uint32", 4, "uint64_data"),
    13: ("uint64", 8, "uint64_data"),
    16: ("bfloat16", 2, "int32_data"),
}
"""By code: name, bytes of one element, and the field that holds numbers which are not raw."""
FIXED_DATA = {"float_data": 4, "double_data": 8}
"""Bytes of one number in the fields that do not hold varints."""
DATA_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
