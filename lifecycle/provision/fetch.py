"""Pinned files: from their URL or from a mirror, verified by their checksum before anybody opens them."""

from __future__ import annotations

import hashlib
import logging
import platform
import shutil
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO

from lifecycle.provision.site import Site
from lifecycle.provision.step import StepError
from lifecycle.versions import table

CACHE_DIRECTORY = "/var/cache/holdfast"
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_log = logging.getLogger(__name__)


class Fetch:
    """Gets pinned files into a cache directory. A file there under its own name is whole and verified."""

    def __init__(self, site: Site, cache: Path) -> None:
        self._site = site
        self._cache = cache

    def __call__(self, artifact: str, version: str = "", sha256: str = "") -> Path:
        row: dict[str, Any] = table()["artifacts"][artifact]
        version = version or row.get("version", "")
        arch = platform.machine()
        url = row["url"].format(version=version, arch=arch, deb_arch=_DEB_ARCH.get(arch, arch))
        name = f"{artifact}-{url.rsplit('/', 1)[1].removeprefix(artifact + '-')}"
        wanted = self._site.sha256.get(artifact) or sha256 or row.get("sha256", "")
        if not wanted:
            raise StepError(
                f"{url}: no checksum is pinned for it; verify the file once by hand and put its SHA-256 "
                f"under `sha256: {{{artifact}: ...}}` in node.yaml"
            )
        path = self._cache / name
        if path.exists() and _sha256(path) == wanted:
            return path
        return self._get(url, path, wanted)

    def _get(self, url: str, path: Path, wanted: str) -> Path:
        """Into a part file, verified, then renamed; what a killed fetch left is overwritten."""
        source = self._source(url)
        self._cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        try:
            with self._open(source) as reader, part.open("wb") as writer:
                shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StepError(f"{source}: cannot be fetched ({error}); {self._advice()}") from None
        got = _sha256(part)
        if got != wanted:
            size = part.stat().st_size
            part.unlink()
            raise StepError(
                f"{source}: got SHA-256 {got} over {size} bytes, expected {wanted}; nothing of it was run. "
                f"Was it cut short, or replaced? {self._advice()}"
            )
        part.replace(path)
        _log.info("fetched %s", source)
        return path

    def _source(self, url: str) -> str:
        return f"{self._site.mirror.rstrip('/')}/{url.rsplit('/', 1)[1]}" if self._site.mirror else url

    def _open(self, source: str) -> BinaryIO:
        if source.startswith("s3://"):
            return _open_s3(source)
        if source.startswith("/"):
            return Path(source).open("rb")
        return urllib.request.urlopen(source, timeout=_TIMEOUT_S)

    def _advice(self) -> str:
        where = f"put the right file into the mirror {self._site.mirror}" if self._site.mirror else "name a mirror"
        return f"{where}, or check the network, then run `holdfast node provision` again"


def _open_s3(source: str) -> BinaryIO:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise StepError(f"{source}: boto3 is not installed; `pip install 'holdfast[s3]'`, or copy the mirror") from None
    bucket, _, key = source.removeprefix("s3://").partition("/")
    try:
        body: BinaryIO = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"]
    except (BotoCoreError, ClientError) as error:
        raise OSError(str(error)) from None
    return body


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()
