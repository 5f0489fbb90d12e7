"""Machines that run tests are noisy: no property test fails for its time."""

from hypothesis import settings

settings.register_profile("noisy-machine", deadline=None)
settings.load_profile("noisy-machine")
