"""Do the tests bite? Random small changes to the code, each against the fast tests that concern it.

    python scripts/mutants.py --sample 60 --seed 1

A change (a mutant) is killed when a test fails. Those that survive are printed with file and line:
each is either equivalent, or a test that is missing. Only files of ``algorithm/`` and
``federation/`` are changed, in a copy of the package.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

ROOT = Path(__file__).parent.parent
FOLDERS = ("algorithm", "federation")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
OF_ITS_OWN = {"data_spec": ("roll_call",), "training_round": ("failures", "strategy")}
"""Tests of modules that have no file of tests under their own name."""


class Mutant(NamedTuple):
    """One change."""

    file: Path
    line: int
    what: str
    code: str
    """The whole file, changed."""


def mutants(file: Path) -> Iterator[Mutant]:
    """All changes to a file that this knows."""
    source = file.read_text()
    for place, node in enumerate(ast.walk(ast.parse(source))):
        for what, change in changes(node):
            tree = ast.parse(source)
            here = list(ast.walk(tree))[place]
            change(here)
            line = getattr(node, "lineno", 0)
            yield Mutant(file, line, what, ast.unparse(ast.fix_missing_locations(tree)))


def changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    """What can be changed about one node: in words, and how."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        new = SWAPS[type(node.ops[0])]
        yield (
            f"{type(node.ops[0]).__name__} -> {new.__name__}",
            lambda n: n.ops.__setitem__(0, new()),
        )
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        new = SWAPS[type(node.op)]
        # Of annotations and flags "|" is no operator that is swapped.
        yield f"{type(node.op).__name__} -> {new.__name__}", lambda n: setattr(n, "op", new())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        doubled = node.value * 2 + (node.value == 0)
        yield f"{node.value} -> {doubled}", lambda n: setattr(n, "value", doubled)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.If):
        yield "if -> if not", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.While | ast.With):
        for i, statement in enumerate(node.body):
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if (
                isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Raise)
                and not text
            ):
                removed = ast.unparse(statement).splitlines()[0][:60]
                yield f"removed: {removed}", lambda n, i=i: n.body.__setitem__(i, ast.Pass())  # type: ignore[misc]


def tests_of(file: Path, *, near_only: bool) -> list[list[str]]:
    """The fast tests that concern a file, the nearest first."""
    folder, name = file.parent.name, file.stem
    names = (name, *OF_ITS_OWN.get(name, ()))
    near = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        if any(path.stem.removeprefix("test_").startswith(one) for one in names)
    ]
    if near and near_only:
        return [near]
    return [*([near] if near else []), [f"tests/{folder}", "tests/test_hostile.py"]]


def survives(mutant: Mutant, copy: Path, timeout: float, *, near_only: bool) -> bool:
    """Whether all tests pass with a change."""
    changed = copy / mutant.file.relative_to(ROOT)
    before = changed.read_text()
    changed.write_text(mutant.code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for tests in tests_of(mutant.file, near_only=near_only):
            subprocess.run(
                [*command, *tests],
                cwd=copy,
                env=environment,
                check=True,
                capture_output=True,
                timeout=timeout,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return False
    finally:
        changed.write_text(before)
    return True


def main(
    sample: Annotated[int, typer.Option(min=1, help="Changes to try.")] = 60,
    seed: int = 0,
    only: Annotated[str, typer.Option(help="Files by name, such as auto,cloud.")] = "",
    near: Annotated[bool, typer.Option(help="Only the tests of the file itself.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds; a longer run is a killed one.")] = 600,
) -> None:
    """Try a random sample of changes and print the survivors."""
    files = [path for f in FOLDERS for path in sorted((ROOT / "cflower" / f).glob("*.py"))]
    files = [path for path in files if not only or path.stem in only.split(",")]
    there = [mutant for path in files for mutant in mutants(path)]
    chosen = random.Random(seed).sample(there, min(sample, len(there)))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        keep = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".hypothesis", "build")
        shutil.copytree(ROOT, copy, ignore=keep)
        for number, mutant in enumerate(chosen, start=1):
            alive = survives(mutant, copy, timeout, near_only=near)
            survivors += [mutant] * alive
            place = f"{mutant.file.relative_to(ROOT)}:{mutant.line}"
            told = f"{'SURVIVED' if alive else 'killed  '} {place} {mutant.what}"
            print(f"[{number}/{len(chosen)}] {told}", flush=True)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} killed, of {len(there)} that there are.")


if __name__ == "__main__":
    typer.run(main)
