"""A network as readable C++17 that builds where no Python is, with its weights and the runtime.

program.py            calls, tensors in memory, tasks, as frozen data
translate.py          graph and weights -> program
translation.py        state of a translation, and what is fused
operators/            rules, one for each operator of PyTorch
view_algebra.py       views of views, by strides
branch_paths.py       branches of operators that no layer calls
channel_calls.py      tasks for every pair of channels
concat_in_place.py    joins without a copy
shared_memory.py      which tensors may share memory, and how small no arena can be
memory.py             where tensors lie in the arena
layer_lists/          the network as two JSON lists of layers
source.py             program -> C++ text
weights_file.py       the weights as one file
project.py            the folder
restored_folder.py    the folder as it was, where a new one fails
build.py              build it and compare it with the module
export.py             all of it
"""
