"""For all tests: the same examples every time, and no assertion on the time they take."""

from hypothesis import settings

settings.register_profile("cflower", deadline=None, derandomize=True)
settings.load_profile("cflower")
