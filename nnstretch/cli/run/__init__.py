"""`run`: one input, a stream, or many requests.

run.py          the verb
show.py         its result as text
pipeline.py     `--mode pipeline`
requests.py     `--requests`: a load test
array_files.py  --input and --output, by name where there are several
image_input.py  a photograph as input, its best classes
"""
