"""Cross-layer transcoders: features that stand in for a model's MLPs.

`transcoder` has the equations, `train` makes one, `store` keeps it, `evaluation` measures it, `features` says what a
feature stands for.
"""
