"""The .nns file: sub-graphs, their manifest and their digest in one sealed archive.

bundle.py             read_bundle, write_bundle
manifest.py           schema of manifest.json
pipeline_view.py      what the stages of a pipeline read and write, and who feeds whom
image_task.py         how images become an input, and what scores stand for
eight_bit.py          gray images of 16 bits as 8
quantization.py       int8 codes of real numbers and back: the one rule
validate.py           validation of a manifest
validate_pipeline.py  validation of its pipeline
archive.py            sealed zip
variants.py           several plans in one bundle
model_files/          files of sub-graphs, checked before a runtime sees them
"""
