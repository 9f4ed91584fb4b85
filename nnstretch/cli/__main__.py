import sys

from nnstretch.cli import main

sys.exit(main())
