"""`nnstretch accelerate`: accelerate.py is the verb, schedule_rules.py its option --rule."""
