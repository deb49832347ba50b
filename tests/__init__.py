"""All tests. This runs before any of them can load torch, and what is set here reaches every process they start."""

import os

# Several torch processes share few cores here. Threads that spin while they wait for each other's work would keep the
# others from doing it: three processes of two threads on two cores got a fifth of what they get when threads sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
