"""Where examples come from, how they are dealt out, and how clients are made to differ.

The way through: `sources` finds a data set, `partition` deals it out, `columns` turns one
partition into arrays, `shifts` makes the groups of clients differ, and `client_data` puts
these together into what one client learns from.
"""

from cflower.data.client_data import ClientData, DataSettings, load_client_data
from cflower.data.examples import Examples

__all__ = ["ClientData", "DataSettings", "Examples", "load_client_data"]
