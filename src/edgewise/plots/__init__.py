"""Figures, drawn from saved results: no model is needed to draw one again."""
