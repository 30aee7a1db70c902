"""Where examples come from, how they are dealt out, and how clients are made to differ.

The way through: `sources` finds a data set, `partition` deals it out, `columns` turns one
partition into arrays, `shifts` makes the groups of clients differ, and `client_data` puts
these together into what one client learns from.
"""
