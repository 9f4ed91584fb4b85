"""Task graphs with their costs, read strictly from the files of several worlds.

read_task_graph.py  which form a file has, and the processors that the command line names
cost_table.py       JSON with tasks or a ready queue, processors, costs and edges
standard.py         Standard Task Graph files, .stg
cedr_dag.py         JSON of CEDR's DAG mode
"""
