"""Segment options: the arcs of the search graph.

segment_option.py   a segment, its processors, its merge, and what its branches may be
segment_options.py  all of a space
"""
