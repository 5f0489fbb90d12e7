"""Machines that run tests are noisy: no property test fails for its time, and threads that wait don't spin."""

import os

from hypothesis import settings

# Before anything imports torch or CTranslate2.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile("noisy-machine", deadline=None)
settings.load_profile("noisy-machine")
