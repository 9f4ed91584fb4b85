"""What tasks are expected to cost, in rows of one number per processor.

cost_rows.py  rows of costs, corrected by what tasks really took
"""
