"""The ClientApp: it evaluates the model it receives, trains it, and tells its name."""

from cflower.client_app import app

__all__ = ["app"]
