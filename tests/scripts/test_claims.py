"""Figures on the pages are those of the files that they link: each claim is computed anew."""

import json
import re
from pathlib import Path
from typing import Any

import manifest
import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = pd.read_csv(manifest.RESULTS / "claims.csv", dtype=str).to_dict("records")


def content_of(file: str) -> Any:
    """A table as a data frame, JSON as it is."""
    path = manifest.RESULTS / file
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{Path(c['page']).stem}: {c['text'][:40]}")
def test_a_claim_is_on_its_page_and_follows_from_its_file(claim):
    page = re.sub(r"\s+", " ", (ROOT / claim["page"]).read_text())
    assert claim["text"] in page, "the page has changed: correct scripts/results/claims.csv, too"
    names = {"t": content_of(claim["file"]), "np": np, "pd": pd}
    found = eval(claim["figure"], names)
    assert format(found, claim["format"]) in claim["text"]
