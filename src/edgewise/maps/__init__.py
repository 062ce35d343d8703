"""Attention maps: compute, classify heads, save. Nothing is drawn here."""
