"""`search`: arguments and output.

search.py  the verb
output.py  results as JSON and tables
"""
