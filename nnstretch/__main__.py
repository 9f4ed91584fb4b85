"""`python -m nnstretch` is `nnstretch`; launchers such as torchrun want a module."""

import sys

from nnstretch.cli import main

if __name__ == "__main__":
    sys.exit(main())
