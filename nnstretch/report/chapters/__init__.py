"""Chapters of the page: each shows what its files tell, or says which file is absent.

headline.py           first screen
pipeline_headline.py  first screen of a pipeline
summary.py            networks side by side, sources
search.py             plan, latency terms, space, best plans
runs.py               timelines, runs, differences from the prediction
training.py           accuracy and loss
pipeline.py           items, stages, split
elements.py           what chapters are built of
"""
