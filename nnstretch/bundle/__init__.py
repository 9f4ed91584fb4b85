"""The .nns file: sub-graphs, their manifest and their digest in one sealed archive.

bundle.py    read_bundle, write_bundle
manifest.py  schema of manifest.json
validate.py  validation of a manifest
archive.py   sealed zip; its strict JSON decoder (60 lines) goes to files/decode.py
variants.py  several plans in one bundle
"""
