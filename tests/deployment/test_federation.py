import subprocess
import sys
import time

import datasets
import numpy as np
import pytest

from cflower.data.own_data import OwnData, load_own_data
from cflower.deployment.materials import CLASSES, make_certificates, make_data, make_key
from cflower.deployment.processes import Process, descendants, started


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.slow
def test_nodes_get_digits_of_their_own_in_three_formats(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / ".cache"))
    inputs = []
    for number in range(1, 5):
        make_data(tmp_path / str(number), number)
        data = load_own_data(OwnData(str(tmp_path / str(number)), CLASSES))
        assert data.train.input_shape == (1, 8, 8)
        assert len(data.train) + len(data.report) == 160
        inputs.append(np.concatenate([data.train.inputs, data.report.inputs]))
    suffixes = {path.suffix for path in tmp_path.rglob("*") if path.parent.name in "123"}
    assert {".parquet", ".npz"} <= suffixes
    # Handwritten digits are heavier above the middle than below it, the right way up.
    lean = [float(part[:, :, :4].sum() - part[:, :, 4:].sum()) for part in inputs]
    assert lean[0] * lean[2] > 0 > lean[0] * lean[1]
    assert lean[1] * lean[3] > 0


def test_the_certificate_is_signed_by_the_authority(tmp_path):
    make_certificates(tmp_path / "certificates")
    command = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "localhost"]
    subprocess.run(
        [*command, "server.pem"], cwd=tmp_path / "certificates", check=True, capture_output=True
    )
    make_key(tmp_path / "keys" / "site-1")
    assert (tmp_path / "keys" / "site-1").stat().st_mode & 0o077 == 0
    assert "ecdsa" in (tmp_path / "keys" / "site-1.pub").read_text()


def test_a_process_is_ended_with_what_it_started_and_nothing_else_is(tmp_path):
    process = Process(tmp_path, "sleeper")
    assert process.pid is None
    assert not process.end()
    code = "import subprocess as s, time; s.Popen(['sleep', '60']); print('up', flush=True); "
    process.start([sys.executable, "-c", code + "time.sleep(60)"])
    while "up" not in process.log.read_text():
        time.sleep(0.05)
    pid = process.pid
    assert pid is not None
    family = [pid, *descendants(pid)]
    assert len(family) == 2
    assert process.end()
    assert not any(started(member) for member in family)

    # its id was given to another process meanwhile
    other = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "pids" / "sleeper.pid").write_text(f"{other.pid} before\n")
        assert not process.end()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
