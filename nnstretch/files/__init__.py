"""Files read strictly and written atomically.

read.py             kind and size of a file before it is read
limits.py           ranges, lengths and choices, as annotations of a field
checked.py          arguments of public functions, by their annotations
json_text.py        JSON text without equal keys or NaN
decode.py           JSON and YAML -> frozen dataclasses, strictly
json_kinds.py       numbers, texts, lists, tables and unions of JSON
model_text.py       a MODEL and the inputs of its network <-> text
strict_yaml.py      YAML without duplicate or blank keys, or numbers to the base 60
safetensors_header.py  the header of a weights file
plan_yaml.py        plan <-> YAML
plan_prediction.py  what a plan file holds of its predicted cost
trial_json.py       trial -> JSON of the contract
journal.py          JSON lines, append-only, resumable
atomic.py           atomic replace
package_data.py     where shipped data lies
task_graphs/        task graphs with their costs
workload/           workloads: what arrives when, under which policy
"""
