"""The protocols by which layers are compared. A folder of the user's own with this name goes on working."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
