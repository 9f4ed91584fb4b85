"""Pages and pictures of simulated workloads: one simulation, or a sweep of many.

views.py               what results and journals say, as far as pages need it
sweep_data.py          a sweep's journal: means over trials
sweep_pictures.py      latency against rate, policies, pools, queues, decisions
sweep_page.py          the page of a sweep
simulation_page.py     the page of one simulation
"""
