"""Imports point one way: algorithm ← federation ← apps; learning and data stand beside."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "cflower"

FORBIDDEN = {
    "algorithm": (
        "flwr",
        "torch",
        "torchvision",
        "datasets",
        "flwr_datasets",
        "cflower.federation",
        "cflower.learning",
        "cflower.data",
        "cflower.runs",
        "cflower.config",
    ),
    "federation": (
        "torch",
        "torchvision",
        "datasets",
        "flwr_datasets",
        "cflower.learning",
        "cflower.data",
        "cflower.runs",
        "cflower.config",
    ),
    "learning": ("flwr", "cflower.federation", "cflower.runs", "cflower.config"),
    "data": ("flwr", "cflower.federation", "cflower.runs", "cflower.config"),
    "deployment": (
        "flwr",
        "torch",
        "cflower.federation",
        "cflower.learning",
        "cflower.data",
        "cflower.runs",
        "cflower.config",
    ),
    "runs": ("torch", "torchvision", "cflower.learning", "cflower.data"),
}
"""What a layer must not import, beside the apps above it."""

APPS = (
    "client_app",
    "server_app",
    "cli",
    "saved",
)
ALLOWED_TO_ALGORITHM = (
    "cflower.algorithm",
    "cflower.errors",
    "cflower.ordering",
    "cflower.seeding",
)


def imports_of(source: str) -> set[str]:
    """The dotted names a module imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer they come from"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def lies_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def modules(layer: str) -> list[Path]:
    found = sorted((PACKAGE / layer).rglob("*.py"))
    assert found, f"no layer {layer}"
    return found


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_imports_only_point_downwards(layer):
    forbidden = (*FORBIDDEN[layer], *(f"cflower.{app}" for app in APPS))
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in modules(layer)
        for name in sorted(imports_of(path.read_text()))
        if lies_in(name, forbidden)
    ]
    assert wrong == []


def test_the_algorithm_knows_only_itself_errors_and_seeding():
    wrong = [
        f"{path.name} imports {name}"
        for path in modules("algorithm")
        for name in sorted(imports_of(path.read_text()))
        if lies_in(name, ("cflower",)) and not lies_in(name, ALLOWED_TO_ALGORITHM)
    ]
    assert wrong == []


def test_every_import_is_seen():
    source = "import a.b\nfrom c import d\ndef f():\n    from e.f import g"
    assert imports_of(source) == {"a.b", "c", "c.d", "e.f", "e.f.g"}
    assert lies_in("flwr.app", ("flwr",))
    assert not lies_in("flwr_datasets", ("flwr",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("cflower, cflower.algorithm.cfl_round", {"flwr", "torch", "datasets"}),
        ("cflower.federation.strategy, cflower.federation.inline_grid", {"torch", "datasets"}),
    ],
)
def test_importing_a_layer_leaves_the_others_out(modules, absent):
    code = f"import sys, {modules}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    imported = set(done.stdout.split())
    assert set(modules.split(", ")) <= imported
    assert imported & absent == set()
