"""A setting has the same default in the app's config and in the Strategy."""

from inspect import signature

from cflower import ClusteredFL
from cflower.config import RunConfig

BY_CRITERION = {"trial_rounds", "moving", "personal"}
"""None: the criterion decides; in the config, -1 or True."""
OF_THE_APP = {"min_available_nodes", "fraction_evaluate"}


def test_the_strategys_defaults_are_those_of_the_config():
    config = RunConfig()
    defaults = {
        name: parameter.default
        for name, parameter in signature(ClusteredFL).parameters.items()
        if hasattr(config, name) and name not in BY_CRITERION | OF_THE_APP
    }
    assert len(defaults) >= 8
    assert defaults == {name: getattr(config, name) for name in defaults}
