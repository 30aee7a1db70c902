"""Do the tests bite? Random small changes to the code, each against the fast tests that concern it.

    python scripts/mutants.py --sample 150 --seed 2

A change (a mutant) is killed when a test fails that runs the changed line; which these are, and
how long each takes, is measured once. Those that survive are printed with file and line: each is
either equivalent, or a test that is missing. Only files of ``algorithm/`` and ``federation/`` are
changed, in a copy.
"""

import ast
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
import typer
from coverage import CoverageData

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
SUITE = (
    *(f"{place}/{folder}" for place in ("cflower", "tests") for folder in FOLDERS),
    "tests/recording/test_checkpoint.py",
    "tests/test_foreign_app.py",
    "tests/test_hostile.py",
    "tests/test_privacy.py",
)
OPTIONS = ("-q", "-x", "-m", "not slow", "-p", "no:cacheprovider")
LATE = (
    "flwr.superlink.grid",
    "scipy.cluster.hierarchy",
    "scipy.linalg.blas",
    "scipy.sparse.csgraph",
    "scipy.special",
    "sklearn.metrics",
)
"""What is imported when it is needed, each for a second."""
NO_LIMIT = 3600
"""Seconds."""


Changed = ast.stmt | ast.expr


class Mutant(NamedTuple):
    """One change."""

    file: Path
    """As seen from the root of the repository."""
    place: int
    """Of the node in ``ast.walk``."""
    lines: range
    in_function: bool
    """What is not, is run on import and may concern any test of the file."""
    what: str
    change: Callable[[Any], None]

    def code(self, before: str) -> str:
        """The whole file, changed."""
        tree = ast.parse(before)
        self.change(list(ast.walk(tree))[self.place])
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(file: Path) -> Iterator[Mutant]:
    """All changes to a file that this knows."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    bodies = {line for node in functions for one in node.body for line in lines_of(one)}
    for place, node in enumerate(nodes):
        for what, changed, change in changes(node):
            lines = lines_of(changed)
            inside = lines.start in bodies
            yield Mutant(file.relative_to(ROOT), place, lines, inside, what, change)


def lines_of(node: ast.stmt | ast.expr) -> range:
    """The lines of a file that a statement or an expression takes."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def changes(node: ast.AST) -> Iterator[tuple[str, Changed, Callable[[Any], None]]]:
    """What can be changed about one node: in words, where, and how."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        old, new = type(node.ops[0]), SWAPS[type(node.ops[0])]
        yield f"{old.__name__} -> {new.__name__}", node, lambda n: n.ops.__setitem__(0, new())
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        old, new = type(node.op), SWAPS[type(node.op)]
        # Of annotations and flags "|" is no operator that is swapped.
        yield f"{old.__name__} -> {new.__name__}", node, lambda n: setattr(n, "op", new())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        doubled = node.value * 2 + (node.value == 0)
        yield f"{node.value} -> {doubled}", node, lambda n: setattr(n, "value", doubled)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", node, lambda n: setattr(n, "value", not n.value)
    if isinstance(node, ast.If):
        yield "if -> if not", node.test, lambda n: setattr(n, "test", opposite(n.test))
    if isinstance(node, ast.FunctionDef | ast.If | ast.For | ast.While | ast.With):
        for i, statement in enumerate(node.body):
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            removable = ast.Assign | ast.AugAssign | ast.Expr | ast.Raise
            if isinstance(statement, removable) and not text:
                removed = ast.unparse(statement).splitlines()[0][:60]
                yield f"removed: {removed}", statement, partial(remove, i)


def opposite(test: ast.expr) -> ast.expr:
    """A condition that is true where this one is not."""
    return ast.UnaryOp(ast.Not(), test)


def remove(i: int, node: Any) -> None:
    """Leave out the i-th statement of a body."""
    node.body[i] = ast.Pass()


class Clock:
    """A plugin of pytest that writes down how long each test takes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After the setup, the call and the teardown of each."""
        with self.path.open("a") as lines:
            lines.write(f"{report.duration} {report.nodeid}\n")

    def seconds(self) -> dict[str, float]:
        """Of each test."""
        found: defaultdict[str, float] = defaultdict(float)
        for line in self.path.read_text().splitlines():
            seconds, _, test = line.partition(" ")
            found[test] += float(seconds)
        return found


def tests_by_line(copy: Path, clock: Clock) -> dict[Path, dict[int, set[str]]]:
    """The fast tests that run each line of each file, from one measured run of all of them."""
    measured = copy / ".coverage"
    covered = [f"--cov=cflower/{folder}" for folder in FOLDERS]
    code = in_fork([*covered, "--cov-context=test", "--cov-report=", *SUITE], NO_LIMIT, clock)
    if code:
        raise typer.BadParameter("the tests fail without any change: run pytest to see which")
    data = CoverageData(str(measured))
    data.read()
    return {
        Path(file).relative_to(copy): {
            line: {context.split("|")[0] for context in contexts if context}
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


def tests_of(
    mutant: Mutant, by_line: dict[int, set[str]], seconds: Mapping[str, float], budget: float
) -> list[str]:
    """The tests that run a changed line, the shortest first; those of its file count as shorter.

    Not more than take so many seconds together.
    """
    concerned = set().union(*(by_line.get(line, ()) for line in mutant.lines))
    if not concerned or not mutant.in_function:
        concerned = set().union(*by_line.values())
    named = f"test_{mutant.file.stem}"
    there = sorted(concerned, key=lambda test: (seconds[test] / (10 if named in test else 1), test))
    until = takewhile(lambda spent: spent <= budget, accumulate(seconds[test] for test in there))
    return there[: max(1, len(list(until)))]


def warm_up(copy: Path) -> None:
    """Import once, for all copies of this process, what the tests import and nobody changes."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    os.chdir(copy)
    with open(os.devnull, "w") as silence, redirect_stdout(silence):
        pytest.main(["--collect-only", *OPTIONS, *SUITE])
    for name in LATE:
        import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cflower", "tests")]:
        del sys.modules[name]


def in_fork(arguments: list[str], seconds: int, *plugins: Clock) -> int:
    """The exit code of pytest in a copy of this process; 0 if all tests pass."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm(min(5 * seconds, NO_LIMIT))  # of a process that only waits
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 1
        try:
            code = pytest.main([*OPTIONS, *arguments], plugins)
        finally:
            os._exit(code)  # whatever happened: the rest is for the first process
    return os.waitpid(child, 0)[1]


def survives(mutant: Mutant, copy: Path, tests: list[str], seconds: int) -> bool:
    """Whether all tests pass with a change."""
    changed = copy / mutant.file
    before = changed.read_text()
    changed.write_text(mutant.code(before))
    try:
        return in_fork(tests or list(SUITE), seconds) == 0
    finally:
        changed.write_text(before)


def main(
    sample: Annotated[int, typer.Option(min=1, help="Changes to try.")] = 60,
    seed: int = 0,
    only: Annotated[str, typer.Option(help="Files by name, such as auto,cloud.")] = "",
    budget: Annotated[float, typer.Option(help="Seconds of tests, the shortest first.")] = 60,
    seconds: Annotated[int, typer.Option(help="Of CPU time; a longer run is a killed one.")] = 60,
) -> None:
    """Try a random sample of changes and print the survivors."""
    files = [path for f in FOLDERS for path in sorted((ROOT / "cflower" / f).glob("*.py"))]
    files = [path for path in files if not only or path.stem in only.split(",")]
    there = [mutant for path in files for mutant in mutants(path)]
    chosen = random.Random(seed).sample(there, min(sample, len(there)))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "copy"
        keep = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".hypothesis", "build")
        shutil.copytree(ROOT, copy, ignore=keep)
        warm_up(copy)
        clock = Clock(Path(folder) / "seconds")
        by_line = tests_by_line(copy, clock)
        times = clock.seconds()
        for number, mutant in enumerate(chosen, start=1):
            tests = tests_of(mutant, by_line.get(mutant.file, {}), times, budget)
            alive = survives(mutant, copy, tests, seconds)
            survivors += [mutant] * alive
            result = f"{mutant.file}:{mutant.lines[0]} {mutant.what} ({len(tests)} tests)"
            word = "SURVIVED" if alive else "killed  "
            print(f"[{number}/{len(chosen)}] {word} {result}", flush=True)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} killed, of {len(there)} that there are.")


if __name__ == "__main__":
    typer.run(main)
