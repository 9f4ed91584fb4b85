"""`serve`: networks behind HTTP, scheduled as requests arrive.

serve.py         the verb
applications.py  networks of a workload, loaded, with what they cost
host_pool.py     processors: cores of this host, or an emulated chip
outputs.py       record and logs, and what of them is not written
record_header.py what a record says of a server
result_json.py   what became of all requests
show.py          the result as text
"""
