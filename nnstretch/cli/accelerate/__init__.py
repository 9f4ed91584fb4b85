"""`nnstretch accelerate`: accelerate.py is the verb."""
