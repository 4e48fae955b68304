"""The version of the whole distribution, and of the API it speaks."""

__version__ = "0.1.0"
API_VERSION = 1
