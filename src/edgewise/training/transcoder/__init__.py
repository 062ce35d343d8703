"""Cross-layer transcoders: sparse features that reconstruct a model's MLP outputs.

`transcoder` has the equations, `train` trains one, `store` saves and loads it, `evaluation` measures it, `features`
describes features.
"""
