"""Names in order, and mappings with or without some of them."""

from cflower.ordering import without


class NotSearched(tuple[str, ...]):
    """Names that may be read once, but not searched for each entry of a mapping."""

    def __contains__(self, name: object) -> bool:
        raise AssertionError("a search for each entry takes the square of their number")


def test_ten_thousand_names_are_left_out_without_a_search_for_each_entry():
    mapping = {"a": 1, "b": 2, "c": 3}
    assert without(mapping, NotSearched(["a", "c", "d"])) == {"b": 2}
