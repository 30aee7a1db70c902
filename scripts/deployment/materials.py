"""Certificates, keys and data for a federation on one machine."""

import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = tuple("0123456789")
SHARE = 160
"""Digits in a node's folder; those of the first eleven nodes are disjoint."""
SERVER_CERTIFICATE = """\
subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1
basicConstraints=CA:FALSE
keyUsage=digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth
"""


def make_certificates(folder: Path) -> None:
    """Make ``ca.crt`` and ``ca.key``, and ``server.pem`` and ``server.key`` signed by them."""
    if folder.exists():
        return
    folder.mkdir(parents=True, mode=0o700)
    (folder / "server.ext").write_text(SERVER_CERTIFICATE)
    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    may_sign = (
        "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign"
    )
    signed = "-CA ca.crt -CAkey ca.key -CAcreateserial -extfile server.ext -days 365"
    for command in (
        f"req -x509 {new_key} -days 365 -subj /CN=cflower {may_sign} -keyout ca.key -out ca.crt",
        f"req {new_key} -subj /CN=localhost -keyout server.key -out server.csr",
        f"x509 -req -in server.csr {signed} -out server.pem",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def make_key(path: Path) -> None:
    """Make a SuperNode's key pair, ``path`` and ``path.pub``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, capture_output=True)


def make_data(folder: Path, number: int) -> None:
    """Write digits for node ``number``, from 1 on, upside down for every second one.

    The formats alternate: a folder of images per class, Parquet, NPZ.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    mine = order[np.arange((number - 1) * SHARE, number * SHARE) % len(order)]
    pixels = np.round(digits.images[mine] * 255 / 16).astype(np.uint8)
    pixels, labels = np.rot90(pixels, 2 * ((number - 1) % 2), axes=(1, 2)), digits.target[mine]
    folder.mkdir(parents=True)
    if number % 3 == 1:
        for place, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
            (folder / str(label)).mkdir(exist_ok=True)
            Image.fromarray(picture).save(folder / str(label) / f"{place:04}.png")
    elif number % 3 == 2:
        import pandas

        table = pandas.DataFrame({"image": pixels.tolist(), "label": labels})
        table.to_parquet(folder / "digits.parquet")
    else:
        np.savez(folder / "digits.npz", x=pixels, y=labels)
