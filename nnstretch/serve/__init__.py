"""Serve many networks at once: requests over HTTP, scheduled as they arrive.

served_network.py  a network, loaded so that every processor may compute it
served_application.py  an application while it is served
model_names.py     names that a URL can lead to
network_server.py  requests over several networks on the processors of this host
statistics.py      what became of the requests of an application
recorder.py        write requests to a record as they end
number_lists.py    long lists of numbers in JSON, piece by piece
tensors.py         tensors in requests and answers
infer.py           infer requests and answers of the Open Inference Protocol
descriptions.py    metadata, configuration and statistics of models
request_body.py    bodies of requests, within limits of time and memory
application.py     the protocol as an HTTP application
connections.py     connections that may not hang: limits of time and number, errors below HTTP
metrics.py         counts for Prometheus
http_server.py     sockets, signals, and the end
"""
