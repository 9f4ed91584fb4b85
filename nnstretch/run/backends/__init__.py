"""Backends: one runtime serves one processor; each is imported only where it is chosen.

registry.py         backend names, loading
io_check.py         outputs against the manifest, errors of runtimes in a line
onnxruntime_cpu.py  ONNX Runtime backend
litert.py           LiteRT backend
openvino.py         OpenVINO backend
openvino_import.py  OpenVINO without its telemetry
torch_cpu.py        PyTorch CPU backend
torch_cuda.py       PyTorch CUDA backend
cuda_recording.py   sub-graphs recorded as one CUDA graph
"""
