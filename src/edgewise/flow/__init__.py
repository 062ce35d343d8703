"""Flows: the open attention edges of a prompt. Nothing is drawn here."""
