"""Pipelines of inputs: many items in flight, results in order.

pipeline.py         pipeline session: push/get/stream
assembly.py         steps, buffer, workers and cores of a bundle's pipeline
parameters.py       weights that are replaced while it runs
weight_patching.py  replace weights inside a file
item_buffer.py      ring buffer of items, what a worker does with one
item_flow.py        who may push and take, and who has to wait
streaming.py        who asks for the next item of a stream, and when
stage_functions.py  what a stage computes
item_tensors.py     tensors of an item: forms, readers, lifetimes
workers.py          threads of a pipeline: cores, statistics
worker_record.py    what one worker has done
sequential.py       the same stages one after another: reference and baseline
prediction.py       a stream on the virtual clock, its bottleneck and pacing
metrics.py          throughput, bottleneck, balance of a stream
item_trace.py       pipeline items in a trace
"""
