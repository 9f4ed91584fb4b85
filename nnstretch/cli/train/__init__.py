"""`train`: a network by a recipe.

train.py     the verb
networks.py  the network to train and its teacher
"""
