"""Two workers on two cores: one thread each, and threads that sleep while they wait."""

import os

# before torch is imported; processes that tests start inherit it
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
