"""What a process loads only when it needs it: libraries take longer to load than cflower to run."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.recording.summary import rand_index
from tests.command import in_new_process

LIBRARIES = ("scipy", "sklearn", "torch", "pydantic", "safetensors")


def loaded_by(code: str, *names: str) -> list[str]:
    """Which of these modules a new process has loaded after some code that prints nothing."""
    found = f"\nimport sys\nprint(*(name for name in {names} if name in sys.modules))"
    return in_new_process(code + found).split()


def command(*arguments: object) -> str:
    """The code of a process with the command `cflower`, its output left out."""
    return (
        "from contextlib import redirect_stderr, redirect_stdout\n"
        "from io import StringIO\n"
        "from cflower.cli import app\n"
        "with redirect_stdout(StringIO()), redirect_stderr(StringIO()):\n"
        f"    app({list(map(str, arguments))}, standalone_mode=False)\n"
    )


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["simulate", "--help"]])
def test_a_help_text_needs_neither_numpy_nor_flower(arguments):
    assert loaded_by(command(*arguments), "numpy", "flwr", *LIBRARIES) == []


@pytest.mark.slow
def test_the_strategy_loads_what_flower_loads():
    assert loaded_by("from cflower import ClusteredFL", *LIBRARIES) == []


@pytest.mark.slow
def test_a_simulation_loads_neither_scikit_learn_nor_flowers_superlink(tmp_path):
    code = command("simulate", "--clients", 4, "--out", tmp_path, "-c", "num-server-rounds=1")
    assert loaded_by(code, "sklearn", "flwr.superlink.grid") == []
    assert any(tmp_path.iterdir())


def test_the_digits_are_those_of_scikit_learn():
    digits, source = load_digits(), load_source(DataSettings())
    assert source.all_labels.tolist() == digits.target.tolist()
    assert source.inputs.dtype == "float32" and (source.inputs * 16 == digits.images).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
def test_the_adjusted_rand_index_is_scikit_learns(pairs):
    groups = {f"client-{place}": group for place, (group, _) in enumerate(pairs)}
    leaves = dict(zip(groups, (str(leaf) for _, leaf in pairs), strict=True))
    tree = SimpleNamespace(leaf_of=lambda client: SimpleNamespace(name=leaves[client]))
    expected = adjusted_rand_score(list(groups.values()), list(leaves.values()))
    assert rand_index(groups, tree) == expected


def test_python_m_cflower_is_the_command():
    code = "import runpy, sys; sys.argv = ['cflower', '--version']; runpy.run_module('cflower')"
    assert in_new_process(code.replace("'cflower')", "'cflower', run_name='__main__')")).startswith(
        "cflower 0"
    )
