"""Executors behind the loop (virtual clock, threads) and static executors that repeat a
fixed order.

    virtual.py       simulated executor
    contended.py     virtual clock of a host whose processors slow each other
    threads.py       executor with one thread and queue per processor
    inbox.py         what its threads send each other
    timetable.py     emulated start/end times
    static.py        workers with steps, counters between them
    static_order.py  single runs that repeat a fixed order per processor
    pipeline.py      a worker per stage replica
    wakeup.py        threads that sleep until something moves
    owner_process.py the process that has the threads
    callback_thread.py calls of functions that clients give
"""
