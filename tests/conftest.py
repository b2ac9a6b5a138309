"""Settings shared by all tests."""

from hypothesis import settings

settings.register_profile("normstorm", deadline=None, derandomize=True)
settings.load_profile("normstorm")
