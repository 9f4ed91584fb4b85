"""Results of `nnstretch run`: measures as the contract's JSON, and `.npy` files.

session_json.py  repeated runs of one input
stream_json.py   a stream of items through a pipeline
npy_files.py     strict .npy reader and writer
"""
