"""What the loop keeps: tasks that wait for others, and what each processor has been given.

ready_queue.py      tasks and their unmet needs
processor_queue.py  what one processor has been given, and when it is expected to be free
arrivals.py         when the data of a task are on each processor
"""
