"""Which task runs where and when: the one loop, policies, and the clocks that stand behind it.

    tasks.py     a bundle's manifest as tasks with needs and durations
    loop.py      the loop: ready tasks go to free processors until nothing is left
    policies.py  who goes first
    service.py   requests that come and go: exactly one answer or one error each
    adaptive.py  which of several plans is best at the speed that processors have left
    plans.py     requests over several plans
    moves.py     what is left of a request leaves a processor that has become slow
    mishaps.py   processors that are busy with others' work, and that fail
    timetable.py when tasks start and end: queues, calls, and the host thread that hands over
    virtual.py   the executor whose processors take exactly the predicted time
    threads.py   the executor with one thread and one bounded queue per processor
    decided.py   a schedule that is repeated: threads that work off lists
    passing.py   tasks with nothing to do: nobody waits for them
    flow.py      a pipeline as rules: which item a stage may begin when
    relay.py     workers that pass items on by these rules: counters, no queues
    cores.py     where threads run and how they wait
"""

from nnstretch.schedule.decided import Lists, decided
from nnstretch.schedule.loop import run
from nnstretch.schedule.mishaps import Busy, Fails, Mishaps
from nnstretch.schedule.policies import Placed
from nnstretch.schedule.service import Answer, Request, Service
from nnstretch.schedule.tasks import critical_path_us, durations_of, handovers_of, in_turn, placed_us, subgraph_of, tasks_of
from nnstretch.schedule.threads import Threads
from nnstretch.schedule.virtual import VirtualClock

__all__ = [
    "Answer",
    "Busy",
    "Fails",
    "Lists",
    "Mishaps",
    "Placed",
    "Request",
    "Service",
    "Threads",
    "VirtualClock",
    "critical_path_us",
    "decided",
    "durations_of",
    "handovers_of",
    "in_turn",
    "placed_us",
    "run",
    "subgraph_of",
    "tasks_of",
]
