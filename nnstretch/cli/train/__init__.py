"""`train`: a network by a recipe.

train.py            the verb
networks.py         the network to train and its teacher
ignored_options.py  options that would be passed over
"""
