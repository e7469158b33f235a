"""Programs that tests need and that a user may lack: then they skip, and in CI they fail."""

import importlib.util
import os
import shutil

import pytest


def needs(*names, modules=(), install):
    """A mark for tests that need these programs and modules; `install` says how one gets them."""
    missing = [name for name in names if shutil.which(name) is None]
    missing += [name for name in modules if importlib.util.find_spec(name) is None]
    reason = f"{', '.join(missing)} not installed: {install}"
    return pytest.mark.skipif(bool(missing) and "CI" not in os.environ, reason=reason)
