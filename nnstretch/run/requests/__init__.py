"""Requests of a server until they are answered.

client_threads.py    clients of a load test, each on a thread
open_requests.py     what a server keeps of requests
scheduled_server.py  a server's scheduling thread, from its begin to its end
"""
