"""The proxy that faces the network: nginx, which passes only what SuperNodes need.

A SuperLink serves SuperNodes and operators on one port, and authenticates SuperNodes only: anyone
with access to its Control API may register keys and start runs. So it listens on loopback, and this
proxy passes the paths of the Fleet API, by which SuperNodes speak to it, and refuses all others.
"""

import os
import shutil
from pathlib import Path

from cflower.errors import FederationError

SITE = """\
server {
    listen PUBLIC ssl;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_certificate CERTIFICATES/server.pem;
    ssl_certificate_key CERTIFICATES/server.key;
    location /v1/fleet/ {
        # The second path makes nginx pass the path that it compared, not the one that was sent.
        proxy_pass https://SUPERLINK/v1/fleet/;
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate CERTIFICATES/ca.crt;
        proxy_ssl_name localhost;  # nginx compares no IP addresses
        # The SuperLink reads a request before it checks the key. Flower sends pieces of 5 MiB.
        client_max_body_size 32m;
        proxy_request_buffering off;
        proxy_buffering off;
    }
    location / {
        return 403;
    }
}
"""
ALONE = """\
daemon off;
worker_processes 1;
error_log stderr;
pid nginx.pid;
events {}
http {
    access_log requests.log;
    client_body_temp_path temporary;
    proxy_temp_path temporary;
    fastcgi_temp_path temporary;
    scgi_temp_path temporary;
    uwsgi_temp_path temporary;
    include site.conf;
}
"""
"""Starts nginx for one site in a folder of its own, also without root."""


def site(public: str, superlink: str, certificates: str) -> str:
    """The ``server`` block of nginx's configuration, for ``/etc/nginx/conf.d``.

    nginx listens on the port or address ``public``; the folder of certificates has ``ca.crt``,
    ``server.pem`` and ``server.key``.
    """
    named = SITE.replace("PUBLIC", public).replace("SUPERLINK", superlink)
    return named.replace("CERTIFICATES", certificates)


def nginx() -> str:
    """The program's path. Raises `FederationError` if it is not installed."""
    places = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/usr/local/sbin"
    program = shutil.which("nginx", path=places)
    if program is None:
        raise FederationError(
            "nginx is not installed: install it (on Debian `apt install nginx-light`), or give "
            "--insecure for a federation without TLS, keys and proxy."
        )
    return program


def proxy_command(folder: Path, block: str) -> list[object]:
    """Write nginx's configuration into a folder; the command that starts nginx with it."""
    folder.mkdir(exist_ok=True)
    (folder / "site.conf").write_text(block)
    (folder / "nginx.conf").write_text(ALONE)
    return [nginx(), "-e", "stderr", "-p", folder, "-c", "nginx.conf"]
