"""What the loop keeps: tasks that wait for others, and what each processor has been given.

instance_tasks.py   tasks of an instance, built when they are looked at
open_task.py        a task between its arrival and its end
ready_queue.py      tasks and their unmet needs
processor_queue.py  what one processor has been given, and when it is expected to be free
decision_times.py   how long the policy takes
impossible_choice.py what a policy is told that chose what it may not
arrivals.py         when the data of a task are on each processor
"""
