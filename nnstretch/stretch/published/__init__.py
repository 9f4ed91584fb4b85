"""Published NN-Stretch configurations become plans.

anynet_yaml.py  strict reader of AnyNet YAML
configs_csv.py  the same configurations from a tidy table
anynet.py       published NN-Stretch configurations -> plans
"""
