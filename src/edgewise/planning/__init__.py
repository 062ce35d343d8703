"""What each stage costs on a model of any size, told from its config: arithmetic, memory, time, machines."""
