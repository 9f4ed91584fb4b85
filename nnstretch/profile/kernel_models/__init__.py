"""Kernels as models that a runtime can time: ONNX, TFLite, eager PyTorch.

kernel_shapes.py       what a kernel's shapes say beyond its description
onnx_chains.py         kernels -> one ONNX model, each chain between a head and a tail
onnx_builder.py        ONNX model that grows node by node
onnx_operators.py      operators as ONNX nodes
onnx_movements.py      movements of data as ONNX nodes
tflite_models.py       kernels -> .tflite
tflite_builder.py      .tflite written operator by operator, without a converter
tflite_windows.py      convolutions and pools
tflite_layers.py       linear layers, means, sums, products, concatenations
tflite_operators.py    norms, softmax, products of matrices
tflite_activations.py  activations
tflite_movements.py    movements of data
torch_chains.py        kernels -> one eager module
torch_operators.py     operators as eager calls
torch_movements.py     movements of data as eager calls
"""
