"""`predict`: latency of a network, a plan or operator lists.

predict.py        the verb
kernel_prices.py  what every kernel is priced at
show.py           the result as tables
"""
