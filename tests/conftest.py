"""Two workers on two cores: one thread each, or they would wait for each other in every operation."""

import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported; processes that tests start inherit it
