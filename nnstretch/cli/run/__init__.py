"""`run`: one input, a stream, or many requests.

run.py       the verb
pipeline.py  `--mode pipeline`
requests.py  `--requests`: a load test
"""
