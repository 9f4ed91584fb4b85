"""Requests of a server until they are answered.

open_requests.py     what a server keeps of requests
scheduled_server.py  a server's scheduling thread, from its begin to its end
"""
