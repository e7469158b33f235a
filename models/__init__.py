"""The layers that are compared, one a file. A folder of the user's own with this name goes on working."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
