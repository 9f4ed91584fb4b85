"""`search`: arguments and output.

search.py       the verb
arguments.py    its arguments
request.py      the search that they ask for
result_json.py  the contract's JSON
whole_branches.py  plans priced with whole branches
show.py         the same as tables
picture.py      fronts drawn
"""
