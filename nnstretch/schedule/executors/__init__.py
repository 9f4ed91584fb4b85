"""Executors behind the loop (virtual clock, threads) and static executors that repeat a
fixed order.

    virtual.py    simulated executor
    threads.py    executor with one thread and queue per processor
    timetable.py  emulated start/end times
    static.py     repeat a fixed per-processor order (static schedule)
    pipeline.py   thread per stage replica, progress counters
"""
