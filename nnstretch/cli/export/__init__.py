"""`export`: a bundle, one file, or a folder of C++.

export.py         the verb
options.py        its options, and which go together
whole_network.py  networks with several inputs or outputs
result.py         what was written, as JSON data and as text
cpp.py            `--format cpp`
"""
