"""Meters: one per runtime, and the models that each one times.

meter.py               Meter protocol
registry.py            backend -> meter
onnxruntime_meter.py   ONNX Runtime meter
onnxruntime_layout.py  NCHWc probes
onnx_models.py         kernels -> one ONNX model
onnx_operators.py      operators of kernels as ONNX nodes
onnx_network.py        module -> ONNX for validation
litert_meter.py        LiteRT meter
litert_network.py      module -> .tflite for validation
tflite_models.py       kernel -> .tflite
tflite_ops.py          operators as litert-torch emits them
tflite_writer.py       flatbuffer writer
openvino_meter.py      OpenVINO meter
torch_meter.py         PyTorch meter
torch_modules.py       kernels -> eager module
"""
