"""The shapes of a run folder's JSON files, so that a damaged one is told in a sentence."""

from collections.abc import Mapping
from typing import Any

Shape = Any
"""A type, a tuple of types, ``[shape]`` for a list of such, ``{str: shape}`` for a mapping of any
keys, or a mapping of the keys that must be there; others may be."""
NUMBER = (int, float)
MAYBE = (int, float, type(None))

LINE: Shape = {
    "round": int,
    "cluster": str,
    "members": [str],
    "mean_norm": NUMBER,
    "max_norm": NUMBER,
    "alpha_cross": MAYBE,
    "decision": str,
    "reason": str,
    "clients": {str: {str: NUMBER}},
}
SHAPES: Mapping[str, Shape] = {
    "config.json": {"config": dict},
    "summary.json": {
        "finished": bool,
        "rounds": int,
        "clusters": {str: [str]},
        "splits": [{"round": int, "cluster": str, "children": [str], "alpha_cross": MAYBE}],
        "clients": {str: {"cluster": str}},
        "metrics": {str: NUMBER},
    },
    "tree.json": {
        "clusters": {
            str: {
                "members": [str],
                "children": [str],
                "born": int,
                "split_round": (int, type(None)),
            }
        }
    },
    "examples.json": {"input_shape": [int], "class_names": [str]},
    "clients.json": {"class_names": [str], "clients": {str: dict}},
}


def misfit(value: Any, shape: Shape, where: str = "it") -> str:
    """What does not have its shape, in words; empty if all has.

    >>> misfit({"round": "x"}, {"round": int, "cluster": str})
    'it has no cluster'
    >>> misfit({"round": "x"}, {"round": int})
    'its round is a str'
    """
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        return next((bad for item in value if (bad := misfit(item, shape[0], where))), "")
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where} is no mapping"
        if str in shape:
            found = (misfit(item, shape[str], f"its {key}") for key, item in value.items())
            return next((bad for bad in found if bad), "")
        if missing := [key for key in shape if key not in value]:
            return f"{where} has no {missing[0]}"
        found = (misfit(value[key], part, f"its {key}") for key, part in shape.items())
        return next((bad for bad in found if bad), "")
    kinds = shape if isinstance(shape, tuple) else (shape,)
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    return "" if fits else f"{where} is a {type(value).__name__}"


def tangle(clusters: Mapping[str, Mapping[str, Any]], root: str) -> str:
    """Why clusters are no tree, in words; empty if they are one."""
    seen, open_ends = set(), [root] if clusters else []
    while open_ends:
        name = open_ends.pop()
        if name not in clusters:
            return f"it has no cluster {name}"
        if name in seen:
            return f"its cluster {name} is its own ancestor, or has two"
        seen.add(name)
        open_ends += clusters[name]["children"]
    return "" if len(seen) == len(clusters) else "it has clusters that are not below the first"
