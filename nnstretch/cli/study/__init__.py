"""`study` and `study capacity`.

study.py          `study`
arguments.py      its arguments
prepare.py        recipe, settings and worker that they ask for
show.py           its result as tables
capacity.py       `study capacity`
capacity_json.py  its result as JSON
capacity_show.py  its result as text
"""
