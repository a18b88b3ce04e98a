"""Places a copy of a lake is kept at: a folder, or a bucket of an object store (S3 and what speaks like it, GCS).

A folder gets a file whole or not at all, by renaming; a bucket gets an object once it is closed, one of another size where
sending failed: who reads names from a list that is written last never meets it.
Credentials are those of the environment, as the stores' own clients take them; an address that holds any is refused, unseen.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from catalogs.errors import CoralError, clipped

if TYPE_CHECKING:
    from pyarrow import fs

_CONNECT_TIMEOUT_S, _REQUEST_TIMEOUT_S, _ATTEMPTS = 5.0, 10.0, 3  # of a request: without a byte moving
_FORMS = "write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or the name of a folder"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
# ``s3//bucket``, ``s3:bucket``, ``gs;//bucket``: not written as an address, and as a folder it would be ``s3/bucket`` here.
_MISTYPED = re.compile(r"(s3|gs|file|https?)(?::|:/|[;.]?//+)(?=[^/])", re.IGNORECASE)


class PlaceError(CoralError):
    """A place that cannot be used: not there, not reached, refused."""


class Place(ABC):
    """Where files are put under names with slashes. ``address`` is how others name it; it holds no secret."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def files(self, folder: str) -> dict[str, tuple[int, datetime]]:
        """Size in bytes and time of change of every file below ``folder``, by name; empty where there is none.

        Raises PlaceError where the place itself is not there or not reached.
        """

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """What is in a file; None where there is none."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Put ``content`` there under ``name``, in place of what was."""

    @abstractmethod
    def send(self, name: str, path: Path) -> None:
        """Put the file ``path`` there under ``name``. FileNotFoundError where there is no such file to send."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file."""

    @abstractmethod
    def delete_folder(self, name: str) -> None:
        """Remove a folder with all that is in it."""


def place_of(text: str) -> Place:
    """The place that ``text`` names. Raises PlaceError for what names none."""
    mistyped = None if text.lower().startswith("file:") else _MISTYPED.match(text)
    if not mistyped and not _SCHEME.match(text):
        return FolderPlace(Path(text))
    scheme, rest = (mistyped[1], text[mistyped.end() :]) if mistyped else text.split(":", 1)
    host, _, path = rest.removeprefix("//").partition("/")
    if "@" in host or "?" in text or "#" in text:
        raise PlaceError(
            "an address with a user, a password or options in it is not taken",
            remedy=f"{_FORMS}; credentials come from the environment",
        )
    if mistyped:
        meant = f"did you mean {scheme.lower()}://{clipped(rest)}?" if scheme.lower() in _STORES else _FORMS
        raise PlaceError(f"{clipped(text)} is no address: after {scheme} belongs ://", remedy=meant)
    if scheme.lower() == "file" and urlsplit(text).netloc in ("", "localhost"):
        return FolderPlace(Path(unquote(urlsplit(text).path)))
    if scheme.lower() not in _STORES or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host):
        raise PlaceError(f"{clipped(text)} is no place to copy to", remedy=_FORMS)
    return BucketPlace(scheme.lower(), host, path.strip("/"))


class FolderPlace(Place):
    """A folder of a file system. The system's own errors are left as they are: they name the path."""

    def __init__(self, folder: Path) -> None:
        try:
            self.folder = folder.expanduser().resolve()
        except (OSError, RuntimeError) as error:  # a home that nobody has, links in a circle
            raise PlaceError(f"{clipped(str(folder))} is no folder: {error}", remedy=_FORMS) from error
        super().__init__(str(self.folder))

    def files(self, folder: str) -> dict[str, tuple[int, datetime]]:
        """As :meth:`Place.files`."""
        if self.folder.exists() and not self.folder.is_dir():
            raise PlaceError(f"{clipped(self.address)} is a file", remedy="name a folder")
        found = {}
        for path in (self.folder / folder).rglob("*"):
            if path.is_file():
                state = path.stat()
                name = path.relative_to(self.folder).as_posix()
                found[name] = (state.st_size, datetime.fromtimestamp(state.st_mtime, UTC))
        return found

    def read(self, name: str) -> bytes | None:
        """As :meth:`Place.read`."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """As :meth:`Place.write`."""
        with self._placed(name) as file:
            file.write(content)

    def send(self, name: str, path: Path) -> None:
        """As :meth:`Place.send`."""
        with path.open("rb") as source, self._placed(name) as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def delete(self, name: str) -> None:
        """As :meth:`Place.delete`."""
        (self.folder / name).unlink(missing_ok=True)

    def delete_folder(self, name: str) -> None:
        """As :meth:`Place.delete_folder`."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    @contextmanager
    def _placed(self, name: str) -> Iterator[Any]:
        """A file to write that has its name once it is whole and on the disk."""
        final = self.folder / name
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, FileExistsError) as error:  # a folder of the system's own, such as /proc; a file
            raise PlaceError(f"{clipped(str(final.parent))} cannot be made", remedy="name another folder") from error
        temporary = final.with_name(f"{final.name}.tmp")  # one copies at a time: what a kill leaves is written over
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class BucketPlace(Place):
    """A prefix in a bucket. ``scheme`` s3 or gs."""

    def __init__(self, scheme: str, bucket: str, prefix: str) -> None:
        super().__init__(f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else ""))
        self._scheme, self._bucket = scheme, bucket
        self._base = f"{bucket}/{prefix}" if prefix else bucket

    @cached_property
    def _store(self) -> fs.FileSystem:
        return _STORES[self._scheme](self._bucket)

    def files(self, folder: str) -> dict[str, tuple[int, datetime]]:
        """As :meth:`Place.files`."""
        from pyarrow import fs

        with self._told():
            if self._store.get_file_info(self._bucket).type is fs.FileType.NotFound:
                raise PlaceError(f"there is no bucket {self._bucket}", remedy="make it, or name another with --to")
            below = fs.FileSelector(f"{self._base}/{folder}", recursive=True, allow_not_found=True)
            rows = [row for row in self._store.get_file_info(below) if row.type is fs.FileType.File]
        return {row.path.removeprefix(f"{self._base}/"): (row.size, row.mtime) for row in rows}

    def read(self, name: str) -> bytes | None:
        """As :meth:`Place.read`."""
        with self._told():
            try:
                with self._store.open_input_file(f"{self._base}/{name}") as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """As :meth:`Place.write`."""
        with self._told(), self._store.open_output_stream(f"{self._base}/{name}") as file:
            file.write(content)

    def send(self, name: str, path: Path) -> None:
        """As :meth:`Place.send`."""
        # An error on the way leaves an object of another size under this name, which the next copy sends again.
        with path.open("rb") as source, self._told(), self._store.open_output_stream(f"{self._base}/{name}") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def delete(self, name: str) -> None:
        """As :meth:`Place.delete`."""
        with self._told():
            try:
                self._store.delete_file(f"{self._base}/{name}")
            except FileNotFoundError:
                return

    def delete_folder(self, name: str) -> None:
        """As :meth:`Place.delete_folder`."""
        with self._told():
            self._store.delete_dir(f"{self._base}/{name}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the store's words into one line; a file that is not there passes."""
        from pyarrow import ArrowException

        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ArrowException) as error:
            raise self._explained(" ".join(str(error).split())) from error

    def _explained(self, text: str) -> PlaceError:
        low, scheme = text.lower(), self._scheme
        if any(mark in low for mark in _NO_BUCKET):
            return PlaceError(f"there is no bucket {self._bucket}", remedy="make it, or name another with --to")
        if any(mark in low for mark in _REFUSED):
            names = ", ".join(_CREDENTIALS[scheme])
            is_missing = not any(os.environ.get(name) for name in _CREDENTIALS[scheme])
            whose = f"us, without credentials in the environment ({names})" if is_missing else "these credentials"
            return PlaceError(
                f"{self.address} refuses {whose}", remedy="set those of one who may list, read and write there"
            )
        if any(mark in low for mark in _UNREACHED):
            return PlaceError(
                f"{scheme}://{self._bucket} is not reached at {_endpoint(scheme)}",
                remedy=f"check the network and {_ENDPOINTS[scheme][-1]}, then run it again",
            )
        told = clipped(text, 300).rstrip(".")
        return PlaceError(f"{self.address}: {told}", remedy="mend it and run it again: what was sent stays there")


_NO_BUCKET = ("no_such_bucket", "nosuchbucket", "bucket does not exist")
_REFUSED = ("access_denied", "accessdenied", "invalid_access_key", "signature_does_not_match", "credentials",
            "access token", "forbidden", "unauthorized", "unauthenticated", "permission", "http response code 403",
            "http status 403")  # fmt: skip
_UNREACHED = ("network_connection", "curlcode", "timeout", "timed out", "could not connect", "could not resolve",
              "couldn't resolve", "endpoint", "connection refused", "unavailable")  # fmt: skip
_CREDENTIALS = {"s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"), "gs": ("GOOGLE_APPLICATION_CREDENTIALS",)}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST"),
}
_PROVIDERS = {"s3": "AWS", "gs": "Google Cloud"}


def _endpoint(scheme: str) -> str:
    """Where the store is: as the environment says, else the provider's own."""
    stated = [value for name in _ENDPOINTS[scheme] if (value := os.environ.get(name))]
    return stated[0] if stated else _PROVIDERS[scheme]


def _stated_endpoint(scheme: str) -> dict[str, str]:
    """Arguments of the store's class for an address that the environment states; none where it states none."""
    endpoint = _endpoint(scheme)
    if endpoint == _PROVIDERS[scheme]:
        return {}
    address = urlsplit(endpoint)
    if address.scheme not in ("http", "https") or not address.netloc or "@" in address.netloc:
        raise PlaceError(f"{_ENDPOINTS[scheme][-1]} is no address of a store", remedy="write https://HOST:PORT")
    return {"endpoint_override": address.netloc + address.path.rstrip("/"), "scheme": address.scheme}


def _s3(bucket: str) -> fs.FileSystem:
    from pyarrow import fs

    given = _stated_endpoint("s3")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and not given:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        **given,
        region=region,
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


def _gcs(bucket: str) -> fs.FileSystem:
    from pyarrow import fs

    given = _stated_endpoint("gs")
    limit = timedelta(seconds=_CONNECT_TIMEOUT_S * _ATTEMPTS)
    return fs.GcsFileSystem(
        **given, anonymous=bool(given), retry_time_limit=limit
    )  # an emulator asks for no credentials


_STORES = {"s3": _s3, "gs": _gcs}
