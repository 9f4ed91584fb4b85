"""Files read strictly and written atomically.

atomic.py        atomic replace
decode.py        JSON -> frozen dataclasses, strictly
strict_yaml.py   YAML without duplicate keys
plan_yaml.py     plan <-> YAML
package_data.py  where shipped data lies
"""
