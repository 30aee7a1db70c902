"""Tables of a hospital's kind: what their columns are, and how they become the inputs of a model.

A client describes its columns (`description`), the server agrees on one preparation for all of them
(`agreement`), and the clients and an exported model prepare their rows by it (`preparation`).
"""

from typing import Any

Facts = dict[str, Any]
"""A client's description of one column, see `cflower.tables.description.describe`."""
MOST_CATEGORIES = 50
"""Different values of a column of texts up to which they are categories."""
LONGEST_CATEGORY = 100
ENOUGH_ROWS = 10
"""Consecutive numbers of so many rows are a count of the rows."""
MOST_COLUMNS = 1000
"""Wider tables are not prepared: their numbers are inputs as they are."""
