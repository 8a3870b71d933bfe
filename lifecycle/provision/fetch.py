"""Downloads pinned files from their URL or a mirror, and verifies their checksum before anything uses them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lifecycle.provision.site import SITE_FILE, Site
from lifecycle.provision.step import StepError
from lifecycle.versions import PinnedFile, pinned_file

CACHE_DIRECTORY = "/var/cache/holdfast"
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_TRIES = 5
_REDIRECTS = 5
_TRY_AGAIN = (429, 500, 502, 503, 504)
_log = logging.getLogger(__name__)


class _Reader(Protocol):
    """An open source of bytes: a web page, an object of S3, or a file of the mirror."""

    def __enter__(self) -> _Reader: ...

    def __exit__(self, *failure: Any) -> object: ...

    def read(self, size: int = -1, /) -> bytes: ...


class Fetch:
    """Downloads pinned files into a cache directory. A file gets its final name there only after it was verified."""

    def __init__(self, site: Site, cache: Path) -> None:
        self._site = site
        self._cache = cache

    def __call__(self, artifact: str, version: str = "", sha256: str = "") -> Path:
        file, wanted = self.pinned(artifact, version, sha256)
        path = self._cache / f"{artifact}-{file.name.removeprefix(artifact + '-')}"
        if path.exists() and _sha256(path) == wanted:
            return path
        return self._get(file, path, wanted)

    def pinned(self, artifact: str, version: str = "", sha256: str = "") -> tuple[PinnedFile, str]:
        """The entry of a pinned file, and its SHA-256 in hexadecimal digits.

        Raises:
            StepError: neither versions.yaml nor node.yaml has a checksum for this file.
        """
        file = pinned_file(artifact, version, sha256)
        wanted = self._site.sha256.get(artifact) or file.sha256
        if not wanted:
            raise StepError(
                f"{file.url}: no checksum is pinned for this file. Compute it once with {self._sum_command(file)}, "
                f"compare it with the publisher's, and add it to {SITE_FILE}: sha256: {{{artifact}: SUM}}"
            )
        return file, wanted

    def _get(self, file: PinnedFile, path: Path, wanted: str) -> Path:
        """Download into PATH.part, verify, rename to PATH. A PATH.part that a killed download left is overwritten."""
        source = self._source(file)
        part = path.with_name(path.name + ".part")
        try:
            self._cache.mkdir(mode=0o755, parents=True, exist_ok=True)
            with self._open(source) as reader, part.open("wb") as writer:
                shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StepError(
                    f"{self._cache}: {error.strerror} during the download of {source}; the part file is removed; make "
                    "room there, then run `holdfast node provision` again"
                ) from None
            raise StepError(f"{source}: cannot be downloaded ({error}); {self._advice()}") from None
        got = _sha256(part)
        if got != wanted:
            size = part.stat().st_size
            part.unlink()
            raise StepError(
                f"{source}: got SHA-256 {got} over {size} bytes, expected {wanted}; the file is removed and was not "
                f"used. It is incomplete, or it was replaced; {self._advice()}"
            )
        part.replace(path)
        _log.info("fetched %s", source)
        return path

    def _source(self, file: PinnedFile) -> str:
        return f"{self._site.mirror.rstrip('/')}/{file.name}" if self._site.mirror else file.url

    def _sum_command(self, file: PinnedFile) -> str:
        source = shlex.quote(self._source(file))
        if source.startswith("s3://"):
            return f"`aws s3 cp {source} - | sha256sum`"
        return f"`sha256sum {source}`" if source.startswith("/") else f"`curl -fsSL {source} | sha256sum`"

    def _open(self, source: str) -> _Reader:
        if source.startswith("s3://"):
            return _S3Object(source)
        if source.startswith("/"):
            return Path(source).open("rb")
        return _WebFile(source)

    def _advice(self) -> str:
        where = f"put the right file into the mirror {self._site.mirror}" if self._site.mirror else "set `mirror`"
        return f"{where}, or check the network, then run `holdfast node provision` again"


class _WebFile:
    """The bytes of a URL, through the proxy of the environment. Retries failed requests; every error is an OSError."""

    def __init__(self, url: str) -> None:
        import urllib3

        retries = urllib3.Retry(
            total=_TRIES - 1,
            backoff_factor=0.5,
            status_forcelist=_TRY_AGAIN,
            raise_on_status=False,
            redirect=_REDIRECTS,
        )
        options: Any = {"retries": retries, "timeout": _TIMEOUT_S}
        parts = urlsplit(url)
        proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
        self._pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        self._error = urllib3.exceptions.HTTPError
        with self._as_os_error():
            self._answer = self._pool.request("GET", url, preload_content=False)
        if self._answer.status != 200:
            self.__exit__()
            raise OSError(f"HTTP status {self._answer.status} {self._answer.reason}")

    def __enter__(self) -> _WebFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self._pool.clear()

    def read(self, size: int = -1, /) -> bytes:
        with self._as_os_error():
            return self._answer.read(None if size < 0 else size)

    @contextlib.contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise OSError(" ".join(str(error).split())) from None


class _S3Object:
    """The bytes of an object in S3. Every error is an OSError, as with a file."""

    def __init__(self, source: str) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            raise StepError(
                f"{source}: boto3 is not installed; `pip install 'holdfast-hpc[s3]'`, or copy the mirror to a directory"
            ) from None
        self._errors = (BotoCoreError, ClientError)
        bucket, _, key = source.removeprefix("s3://").partition("/")
        with self._as_os_error():
            config = Config(connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S)
            client = boto3.session.Session().client("s3", config=config)  # the default session caches credentials
            self._body = client.get_object(Bucket=bucket, Key=key)["Body"]

    def __enter__(self) -> _S3Object:
        return self

    def __exit__(self, *_: object) -> None:
        self._body.close()

    def read(self, size: int = -1, /) -> bytes:
        with self._as_os_error():
            return bytes(self._body.read(None if size < 0 else size))

    @contextlib.contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise OSError(" ".join(str(error).split())) from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()
