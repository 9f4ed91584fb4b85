"""Published NN-Stretch configurations become plans.

anynet_yaml.py  strict reader of AnyNet YAML
anynet.py       published NN-Stretch configurations -> plans
"""
