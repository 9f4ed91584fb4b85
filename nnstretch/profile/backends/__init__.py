"""Meters, one per runtime, and networks as each runtime deploys them.

meter.py               Meter protocol
registry.py            backend -> meter
onnxruntime_meter.py   ONNX Runtime meter
onnxruntime_layout.py  NCHWc probes
onnxruntime_records.py launches in the runtime's own records
onnx_network.py        module -> ONNX for validation
litert_meter.py        LiteRT meter
litert_network.py      module -> .tflite for validation
openvino_meter.py      OpenVINO meter
torch_meter.py         PyTorch meter
"""
