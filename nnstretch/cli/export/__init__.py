"""`export`: a bundle, one file, or a folder of C++.

export.py  the verb
cpp.py     `--format cpp`
"""
