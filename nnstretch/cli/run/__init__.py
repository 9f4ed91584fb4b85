"""`run`: one input, a stream, or many requests.

run.py          the verb
show.py         its result as text
pipeline.py     `--mode pipeline`
requests.py     `--requests`: a load test
image_input.py  a photograph as input, its best classes
"""
