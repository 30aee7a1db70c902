"""The ServerApp: `ClusteredFL` on the federation that the run config describes."""

from cflower.server_app import app

__all__ = ["app"]
