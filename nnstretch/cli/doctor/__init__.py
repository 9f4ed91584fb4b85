"""What is installed here and whether it works.

doctor.py        the verb
runtimes.py      does each runtime compute right, do two branches overlap?
probe_bundle.py  small network for that
completion.py    completion of the command line in a shell
extras.py        which packages each extra brings, and the command that brings them
"""
