"""`bench`: the original and its branches against each other on this machine.

bench.py   the verb
result.py  the result as JSON data, as a page and as text
"""
