"""Servers that speak Google's and Azure's protocols on loopback, for the tests of `gs://` and `az://`.

Azure's is Azurite, Microsoft's emulator (npm). For Google there is no emulator of the XML API, which obstore speaks: it
is S3's but for the names of headers, so moto's S3 server answers, behind a translation of those names.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from s3_kit import BUCKET

from ckpt.tiers.s3_client import S3Options

AZURITE = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
_AS_OWNER = "AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_ACCOUNT = "devstoreaccount1"  # Azurite's, with its published key
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def azure_server() -> Iterator[S3Options]:
    """Azurite with an empty container, in memory; its account in the environment."""
    if not AZURITE.exists():
        pytest.skip("no Azurite: `make test` installs it where npm is there")
    argv = [AZURITE, "--inMemoryPersistence", "--blobPort", "0", "--silent", "--disableTelemetry"]
    process = subprocess.Popen([*argv, "--skipApiVersionCheck"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        listens = next((line for line in process.stdout if "listens on http" in line), None)
        assert listens, "Azurite does not start"
        url = f"{listens.split()[-1]}/{_ACCOUNT}"
        _make_container(url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
            patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
            yield S3Options(endpoint_url=url, attempts=2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def google_server() -> Iterator[S3Options]:
    """Google's XML API with an empty bucket; a service account without OAuth in the environment."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(lambda service: create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, _as_google(application), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")).close()
        account = {"gcs_base_url": url, "disable_oauth": True}
        account |= {"client_email": "", "private_key": "", "private_key_id": ""}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
            yield S3Options(endpoint_url=url, attempts=2)
    finally:
        server.shutdown()
        thread.join()


def _as_google(app: Callable[..., Any]) -> Callable[..., Any]:
    def translated(environ: dict[str, Any], start_response: Any) -> Any:
        for name in [name for name in environ if name.startswith("HTTP_X_GOOG_")]:
            environ[name.replace("_GOOG_", "_AMZ_")] = environ.pop(name)
        environ["HTTP_AUTHORIZATION"] = _AS_OWNER
        return app(environ, start_response)

    return translated


def _make_container(url: str) -> None:
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2020-10-02"}
    signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = f"PUT{chr(10) * 12}{signed}/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{url}/{BUCKET}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request).close()
