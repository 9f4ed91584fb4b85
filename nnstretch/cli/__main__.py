"""Entry point of `python -m nnstretch.cli`."""

import sys

from nnstretch.cli import main

sys.exit(main())
