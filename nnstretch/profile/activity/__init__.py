"""Other work on the machine, seen while it happens.

machine_activity.py   counters of the system and what others did between two readings
steady_rounds.py      which rounds of a measurement nobody disturbed
activity_watch.py     measure under watch, repeat what was disturbed, wait for a quiet moment
noise_tally.py        what was lost, and whether the profile is noisy
"""
