"""`search`: arguments and output.

search.py       the verb
arguments.py    its arguments
request.py      the search that they ask for
result_json.py  the contract's JSON
whole_branches.py  plans priced with whole branches
plan_files.py   the plans as files
show.py         the same as tables
picture.py      fronts drawn
"""
