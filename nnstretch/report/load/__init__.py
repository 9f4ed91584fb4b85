"""A folder of results becomes the data that the report shows.

folder.py         folder -> data
data.py           what a folder holds
pipeline.py       folder -> pipeline data
pipeline_data.py  what a folder holds of a pipeline
trace.py          Chrome trace -> timelines
timeline.py       a request of a trace
trace_diff.py     predicted vs played
json_files.py     JSON files, decoded by files/decode.py
"""
