"""Inner loops of the search in C, for where a compiler was at hand when the package was installed.

library.py   the shared library, and its structures
kernels.c    its source; without it the same is computed by arrays, in several times the time
"""
