"""A real S3-compatible server for scenario tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.ports import free_port
from tests.waiting import until

KEY, SECRET = "operator", "a-very-secret-word"
BUCKET = "backups"
_WEED = Path(sys.executable).parent / "weed"
START_S = 60.0
TRIES = 5
"""Sets of ports that are tried: another process may take one between its choice and the start."""


class ObjectStore:
    """A server with one bucket; it keeps ports and data when it is stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = _free_ports()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        self._identities = folder / "identities.json"
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        one = {"name": "operator", "credentials": credentials,
               "actions": ["Admin", "Read", "Write", "List"]}  # fmt: skip
        self._identities.write_text(json.dumps({"identities": [one]}))

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    def address(self, prefix: str, bucket: str = BUCKET, endpoint: str = "") -> str:
        """The address of a folder in it."""
        return f"s3://{bucket}/{prefix}?endpoint={endpoint or self.endpoint}&region=us-east-1"

    def start(self) -> ObjectStore:
        """Starts it and waits until the bucket is there."""
        again = self._process is not None
        for _ in range(TRIES):
            if self._comes_up():
                return self
            if again:
                break
            self._ports = _free_ports()
        raise AssertionError(f"the object store ended: {self._folder / 'weed.log'}")

    def _comes_up(self) -> bool:
        process = self._process = self._launched()
        until(
            lambda: process.poll() is not None or self._bucket_is_there(),
            START_S,
            "the object store to start",
        )
        return process.poll() is None

    def _launched(self) -> subprocess.Popen[bytes]:
        ports = [f"-{name if '.' in name else name + '.port'}={port}"
                 for name, port in self._ports.items()]  # fmt: skip
        with (self._folder / "weed.log").open("ab") as log:
            return subprocess.Popen(
                [str(_WEED), f"-logdir={self._folder}", "server", f"-dir={self._folder}",
                 "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
                 f"-s3.config={self._identities}", "-s3.autoCreateBucket=false",
                 "-master.volumeSizeLimitMB=64", "-volume.max=50", *ports],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder,
            )  # fmt: skip

    def stop(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _bucket_is_there(self) -> bool:
        url = obstore.sign(self._client(), "PUT", "", timedelta(minutes=1))
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                return False
        except OSError:
            return False
        # It takes a moment more until something can be stored.
        with contextlib.suppress(obstore.exceptions.BaseError):
            obstore.put(self._client(), "ready", b"x", use_multipart=False)
            return True
        return False

    def _client(self) -> S3Store:
        return S3Store(
            BUCKET,
            config={"endpoint": self.endpoint, "region": "us-east-1", "access_key_id": KEY,
                    "secret_access_key": SECRET},
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
        )  # fmt: skip

    def keys(self, prefix: str) -> dict[str, float]:
        """Objects below a prefix, and when each was stored."""
        listed = obstore.list(self._client(), prefix).collect()
        return {
            one["path"].removeprefix(prefix + "/"): one["last_modified"].timestamp()
            for one in listed
        }

    def contents(self, prefix: str) -> Iterator[bytes]:
        """The bytes of every object below a prefix."""
        for key in self.keys(prefix):
            with contextlib.suppress(FileNotFoundError):
                yield bytes(obstore.get(self._client(), f"{prefix}/{key}").bytes())


def _free_ports() -> dict[str, int]:
    names = ("master", "volume", "filer", "s3", "master.port.grpc", "volume.port.grpc",
             "filer.port.grpc", "s3.port.grpc")  # fmt: skip
    return {name: free_port() for name in names}


@contextlib.contextmanager
def credentials(key: str = KEY, secret: str = SECRET) -> Iterator[None]:
    """Credentials in the environment, from which the processes of a test inherit."""
    wanted = {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        # Nobody is to be asked for those of a machine.
        "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if value})
    for name, value in wanted.items():
        if not value:
            os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
