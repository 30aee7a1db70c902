"""Every file in `scripts/results` has a line that says where it comes from; pages name commits."""

import json
import re
import shutil
from pathlib import Path

import manifest
import pytest
from command import write_record

from cflower.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), manifest.RESULTS / "README.md"]


def test_every_file_of_results_has_one_line_and_every_line_its_file():
    files = [
        str(path.relative_to(manifest.RESULTS))
        for path in manifest.RESULTS.rglob("*.*")
        if path.suffix not in (".md", ".png") and path.name not in ("MANIFEST.csv", "claims.csv")
    ]
    assert sorted(files) == sorted(row["file"] for row in manifest.read())
    assert all(row["command"] and row["commit"] for row in manifest.read())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_of_this_version_comes_from_a_commit_with_its_algorithm(page):
    if manifest.git("cat-file", "-e", "d269051").returncode:
        pytest.skip("This clone has no history.")
    known = {row["file"]: row["commit"] for row in manifest.read()}
    for paragraph in page.read_text().split("\n\n"):
        if "this version" not in paragraph.lower():
            continue
        linked = [Path(link).name for link in re.findall(r"\]\((\S*results/\S+)\)", paragraph)]
        commits = [known[name] for name in linked if name in known]
        assert commits, f"{page.name} names no file of results: {paragraph[:90]}"
        for commit in commits:
            assert all(map(manifest.is_of_this_version, commit.split())), (
                f"{page.name}: {linked} are of {commit}, and the algorithm has changed: "
                f"write the commit, or measure again. {paragraph[:90]}"
            )


def test_a_commit_before_the_algorithm_changed_is_not_this_version():
    if manifest.git("cat-file", "-e", "d269051").returncode:
        pytest.skip("This clone has no history.")
    assert not manifest.is_of_this_version("41cc468")
    head = manifest.git("rev-parse", "HEAD").stdout.strip()
    assert manifest.is_of_this_version(head)
    assert not manifest.is_of_this_version(head + manifest.CHANGED)
    assert not manifest.is_of_this_version("")


def test_keep_copies_the_tables_and_says_where_they_come_from(tmp_path, monkeypatch):
    results = tmp_path / "results"
    shutil.copytree(manifest.RESULTS, results)
    monkeypatch.setattr(manifest, "RESULTS", results)
    monkeypatch.setattr(manifest, "MANIFEST", results / "MANIFEST.csv")
    out = tmp_path / "peers"
    out.mkdir()
    (out / "peers.csv").write_text("a\n1\n")
    (out / "peers-clients.parquet").write_bytes(b"PAR1")
    record = {"commit": "abc", "processor": "a processor", "seconds_taken": 1.6}
    write_record(record, out / "digits--a.json")
    with pytest.raises(ConfigError, match="does not say which commit"):
        manifest.keep(out, "peers-new")
    manifest.note(out)
    write_record(record | {"commit": "abd"}, out / "digits--b.json")
    manifest.keep(out, "peers-new")
    rows = {row["file"]: row for row in manifest.read()}
    assert {"peers-new.csv", "peers-new-clients.parquet", "votes.csv"} <= rows.keys()
    assert (results / "peers-new.csv").read_text() == "a\n1\n"
    found = rows["peers-new.csv"]
    assert (found["commit"], found["processor"], found["seconds"]) == (
        "abc abd",
        "a processor",
        "3",
    )
    assert found["command"] == " && ".join(json.loads((out / manifest.NOTES).read_text()))
