"""Where hsbench keeps things, following the XDG base directory specification."""

from pathlib import Path

import platformdirs

APP = "hsbench"


def state_dir() -> Path:
    """Server records and logs: `$XDG_STATE_HOME/hsbench`."""
    return Path(platformdirs.user_state_dir(APP))


def cache_dir() -> Path:
    """Things that can be made again, such as the demo model: `$XDG_CACHE_HOME/hsbench`."""
    return Path(platformdirs.user_cache_dir(APP))


def servers_dir() -> Path:
    """One folder a server: `job.json`, its log and, by default, its dumps."""
    return state_dir() / "servers"
