"""Where the store of what was learned lies; asked before anything heavy is imported."""

from __future__ import annotations

import os
from pathlib import Path


def default_path() -> Path:
    """$KVPROOF_STORE, else kvproof/observed.sqlite in the XDG data folder."""
    given = os.environ.get("KVPROOF_STORE")
    root = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    path = Path(given) if given else Path(root) / "kvproof" / "observed.sqlite"
    try:
        return path.expanduser()
    except RuntimeError:  # no home folder: a relative path that won't exist
        return path
