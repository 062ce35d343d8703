"""The command line: a module a command, tables of their results in `tables`, assembled in `main`."""
