"""A network becomes a pipeline: split by hand or automatically, linked, in one bundle."""
