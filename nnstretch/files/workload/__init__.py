"""Workloads: which networks arrive when, on which processors, under which policy.

workload.py       what a workload file may hold
workload_yaml.py  read a workload file
arrival_csv.py    read arrival times from CSV
service_record.py what a server did, request by request
measured_costs.py what tasks really take on a host
sweep_yaml.py     sweeps: pools, policies, rates and trials of a workload
"""
