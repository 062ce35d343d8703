"""Costs of training and analyses on a model of any size, from its config: FLOPs, memory, time, GPUs."""
