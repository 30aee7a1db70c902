"""A run folder that is damaged, killed or on a full disk: the resumed run is the same, or refused.

    python scripts/run.py damage --damages 100 --kills 20 --disks 20

A small run (digits, four clients, ten rounds, splits and trials) is interrupted in round eight. Of
each file of its folder a copy is damaged: a flipped bit, a shorter file, zeros, another file's
content, no file. Then runs are killed (SIGKILL) at random moments, and runs write to a tmpfs that
is too small, which needs root, and is then made larger. All are resumed; ``same`` counts those
whose folder is then that of an uninterrupted run, ``refused`` those that end with one sentence.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from command import quieten_flower, write_table
from flwr.app import Context, Message
from rich.console import Console
from rich.progress import track

from cflower import server_app, simulate
from cflower.client_app import app as client_app
from cflower.errors import CFlowerError
from cflower.seeding import generator

CLIENTS, ROUNDS, INTERRUPTED = 4, 10, 8
KEYS: dict[str, Any] = {
    **{"num-server-rounds": ROUNDS, "min-available-nodes": CLIENTS, "dataset-size": 400},
    **{"split-criterion": "norms", "eps1": 2.0, "eps2": 0.1, "gamma-max": 0.1, "model": "linear"},
    **{"min-cluster-size": 1, "trial-rounds": 2, "inner-interval": 3},
}
NOT_COMPARED = ("checkpoints", "report.html", ".lock")
"""The first checkpoint after a resume has every array."""


class PowerCutError(BaseException):
    """Ends a run as nothing that cflower handles does."""


def run(out: Path, resume: str = "", cut: int = 0) -> None:
    """Run, or resume, and end in the middle of this round."""

    def client(message: Message, context: Context) -> Message:
        asked: dict[str, Any] = dict(message.content.config_records.get("config", {}))
        if cut and asked.get("server-round") == cut:
            raise PowerCutError
        return client_app(message, context)

    keys = {**KEYS, "output-dir": str(out), "resume": resume}
    server = partial(server_app.run, say=lambda text: None)
    simulate(client, CLIENTS, server_app=server, run_config=keys)


def run_in(out: Path) -> Path:
    """The one run folder there."""
    (found,) = out.iterdir()
    return found


def content(out: Path) -> dict[str, Any]:
    """What is in the files of the run there, without times and its name."""
    files = {}
    for path in sorted(run_in(out).rglob("*")):
        name = str(path.relative_to(run_in(out)))
        if path.is_file() and not name.startswith(NOT_COMPARED):
            files[name] = path.read_bytes()
    lines = [json.loads(line) for line in files["rounds.jsonl"].splitlines()]
    parsed = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    parsed["config.json"]["config"] |= {"output-dir": "", "resume": ""}
    parsed["summary.json"]["run_id"] = ""
    return {**files, **parsed, "rounds.jsonl": [{**line, "seconds": 0} for line in lines]}


def compared(out: Path, whole: dict[str, Any]) -> str:
    found = content(out)
    other = sorted(name for name in found.keys() | whole if found.get(name) != whole.get(name))
    return f"different: {', '.join(other)}" if other else "same"


def resumed(out: Path, whole: dict[str, Any]) -> str:
    """How the resumption of the run there ends: same, refused, or what is wrong."""
    if not any(out.glob("*")):
        return "not begun"
    try:
        run(out, resume=str(run_in(out)))
    except CFlowerError as error:
        return "refused" if "\n" not in str(error) else f"not one sentence: {error}"
    except Exception as error:
        return f"failed: {error!r}"
    return compared(out, whole)


def spoilt(content: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """A flipped bit (half of the times), a shorter file, zeros, or another file's content."""
    place, kind = int(rng.integers(len(content))), rng.integers(6)
    if kind > 2:
        flipped = bytes([content[place] ^ 1 << int(rng.integers(8))])
        return content[:place] + flipped + content[place + 1 :]
    if kind == 2:
        return others[rng.integers(len(others))]
    return content[:place] + (bytes(512) + content[place + 512 :] if kind else b"")


def damaged(
    scratch: Path, whole: dict[str, Any], damages: int, pattern: str
) -> Iterator[tuple[str, str]]:
    """What was damaged, and how the run was resumed."""
    with suppress(PowerCutError):
        run(scratch / "cut", cut=INTERRUPTED)
    before, copy = run_in(scratch / "cut"), scratch / "copy"
    files = [path for path in sorted(before.rglob("*")) if path.is_file() and path.stat().st_size]
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, contents, strict=True):
        name = str(path.relative_to(before))
        if not fnmatch(name, pattern):
            continue
        others = [other for other in contents if other != content]
        for number in range(damages):
            shutil.copytree(before, copy / before.name)
            target = copy / before.name / name
            target.write_bytes(spoilt(content, others, generator(0, name, number)))
            if not number:
                target.unlink()
            yield name, resumed(copy, whole)
            shutil.rmtree(copy)


def in_child(out: Path, seconds: float | None = None) -> None:
    """Run in a process of its own, and kill it after some time."""
    if not (child := os.fork()):
        with suppress(BaseException):
            run(out)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def killed(scratch: Path, whole: dict[str, Any], kills: int) -> Iterator[tuple[str, str]]:
    begun = time.monotonic()
    in_child(scratch / "timed")
    usual = time.monotonic() - begun
    for number in range(kills):
        out = scratch / f"kill-{number}"
        in_child(out, usual * generator(0, "kill", number).uniform())
        yield "killed", resumed(out, whole)


def filled(scratch: Path, whole: dict[str, Any], disks: int) -> Iterator[tuple[str, str]]:
    small, out, pages = scratch / "small", scratch / "small" / "runs", 0
    for path in run_in(scratch / "whole").rglob("*"):
        pages += 1 + -(-path.stat().st_size // 4096) if path.suffix != ".html" else 0
    for number in range(disks):
        small.mkdir()
        mount("-t", "tmpfs", "-o", f"size={4 * (2 + number * pages // disks)}k", "tmpfs", small)
        try:
            try:
                run(out)
                ended = compared(out, whole)
            except CFlowerError as error:
                ended = "" if "Cannot write" in str(error) else f"in other words: {error}"
            mount("-o", "remount,size=64m", small)
            yield "full disk", ended or resumed(out, whole)
        finally:
            subprocess.run(["umount", small], check=True)
            small.rmdir()


def mount(*arguments: str | Path) -> None:
    if subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode:
        raise CFlowerError("A full disk needs the right to mount a tmpfs: be root, or --disks 0.")


def main(
    damages: Annotated[int, typer.Option(min=0, help="Of each file.")] = 100,
    files: Annotated[str, typer.Option(help='A pattern, such as "similarity/*".')] = "*",
    kills: Annotated[int, typer.Option(min=0)] = 20,
    disks: Annotated[int, typer.Option(min=0, help="Sizes of a disk that is too small.")] = 20,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the counts.")] = None,
) -> None:
    """Damage, kill and fill, resume and count."""
    quieten_flower()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        run(scratch / "whole")
        whole = content(scratch / "whole")
        jobs = damaged(scratch, whole, damages, files) if damages else iter(())
        for measured in (jobs, killed(scratch, whole, kills), filled(scratch, whole, disks)):
            for what, how in track(measured, "Resuming", console=Console(stderr=True)):
                counts.setdefault(what, Counter())[how] += 1
                if how not in ("same", "refused", "not begun"):
                    print(f"{what}: {how}", flush=True)
    lines = [
        {"what": what, "how": how, "count": n} for what, c in counts.items() for how, n in c.items()
    ]
    for line in lines:
        print(f"{line['what']:32} {line['count']:4} {line['how']}")
    if out:
        write_table(lines, out)
