"""Imports point one way: a room imports only rooms below it, and no modules import each other."""

import ast

import pytest

from tests.command import PROJECT, in_new_process

PACKAGE = PROJECT / "cflower"

BASE = {"errors", "metric", "ordering", "pooled", "seeding", "settings", "own_code"}
BESIDE = {"auto", "changes", "robust"}
CORE = BASE | {"algorithm", "messages", "strategy"}
MAY_IMPORT = {
    "metric": {"errors"},
    "pooled": set(),
    "algorithm": {"errors", "metric", "ordering", "seeding", "settings"},
    "auto": {"ordering", "settings", "algorithm"},
    "robust": {"ordering", "algorithm"},
    "changes": {"metric", "ordering", "algorithm", "robust"},
    "tables": BASE | {"robust"},
    "data": BASE | {"tables"},
    "learning": BASE | {"data"},
    "messages": BASE | {"algorithm", "robust"},
    "privacy": BASE | {"messages"},
    "simulation": BASE | {"messages"},
    "strategy": CORE | BESIDE,
    "runs": CORE | BESIDE,
    "recording": CORE | {"runs", "tables"},
    "config": BASE | {"algorithm", "data", "learning"},
    "clients": BASE | {"algorithm", "config", "data", "learning", "messages", "privacy"},
    "newcomers": CORE | {"runs", "data", "tables", "learning", "privacy", "config", "simulation"},
    "exporting": CORE | {"runs", "data", "tables", "learning", "privacy", "config", "newcomers"},
}
"""The rooms that each room may import; client_app, server_app and cli stand above all of them."""

ANY_FRAMEWORK = {"flwr", "torch", "torchvision", "datasets", "flwr_datasets"}
OUTSIDE = {
    **dict.fromkeys(("metric", "pooled", "algorithm", *BESIDE), ANY_FRAMEWORK),
    "messages": {"torch", "torchvision", "datasets", "flwr_datasets"},
    "strategy": {"torch", "torchvision", "datasets", "flwr_datasets"},
    "simulation": {"torch", "torchvision", "datasets", "flwr_datasets"},
    "privacy": {"torch", "torchvision", "datasets", "flwr_datasets"},
    "recording": {"torch", "torchvision"},
    "runs": {"torch", "torchvision"},
    "learning": {"flwr"},
    "data": {"flwr"},
    "tables": {"flwr", "torch"},
}
"""The packages that each room must not import."""


def imports_of(source):
    """The dotted names a module imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer they come from"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_in(names):
    return {name.split(".")[1] for name in names if name.startswith("cflower.")}


def modules(room):
    single = PACKAGE / f"{room}.py"
    found = [single] if single.is_file() else sorted((PACKAGE / room).rglob("*.py"))
    assert found, f"no room {room}"
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_only_point_downwards(room):
    allowed, foreign = MAY_IMPORT[room] | {room}, OUTSIDE.get(room, set())
    for path in modules(room):
        names = imports_of(path.read_text())
        outside = {name.split(".")[0] for name in names}
        assert rooms_in(names) <= allowed, path.relative_to(PACKAGE)
        assert not outside & foreign, path.relative_to(PACKAGE)


def test_every_room_has_its_place():
    above = {"__init__", "__main__", "client_app", "server_app", "cli", "py"}
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert there - above - {"__pycache__"} == set(MAY_IMPORT) | BASE


def test_no_two_modules_import_each_other():
    names = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    left = {n: imports_of(p.read_text()) & names.keys() - {n} for n, p in names.items()}
    while ready := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in ready:
            del left[name]
    assert not left, f"a circle among {sorted(left)}"


def test_every_import_is_seen():
    source = "import a.b\nfrom c import d\ndef f():\n    from e.f import g"
    assert imports_of(source) == {"a.b", "c", "c.d", "e.f", "e.f.g"}
    assert rooms_in({"cflower.runs.record", "flwr.app"}) == {"runs"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("cflower, cflower.algorithm.round", {"flwr", "torch", "datasets"}),
        ("cflower.client_app", {"pydantic", "cflower.runs"}),
        ("cflower.strategy.clustered_fl, cflower.simulation.simulate", {"torch", "datasets"}),
    ],
)
def test_importing_a_layer_leaves_the_others_out(modules, absent):
    code = f"import sys, {modules}; print(*sys.modules)"
    imported = set(in_new_process(code).split())
    assert set(modules.split(", ")) <= imported
    assert imported & absent == set()
