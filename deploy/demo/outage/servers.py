"""The servers of the demo: a broker and an object store."""

from __future__ import annotations

import logging
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import click
from moto.server import ThreadedMotoServer

from keyscale.api.cli.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "demo"
_CHECKOUT = Path(__file__).resolve().parents[3]
_KAFKA = _CHECKOUT / "deploy" / "stack" / "kafka"
_JARS = _CHECKOUT / ".keyscale" / "stack" / "kafka-jars"
"""The local stack's: fetched once."""
_KEY = "demo"  # the server takes any
_STARTS_MAX = 3


class S3Server:
    """An S3-compatible server that can go away and come back.

    It comes back at the same address, with all that it holds.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it prints each request
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self._host, self._port = self._server.get_host_and_port()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://{self._host}:{self._port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a control plane that keeps its jobs here."""
        return {
            "KEYSCALE_STORE_URL": f"s3://{BUCKET}/jobs",
            "KEYSCALE_S3_ENDPOINT": self.url,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _KEY,
            "AWS_REGION": "us-east-1",
        }

    def create_bucket(self) -> None:
        client = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=_KEY, aws_secret_access_key=_KEY
        )
        client.create_bucket(Bucket=BUCKET)

    def go_away(self) -> None:
        """Refuses every connection."""
        self._server.stop()

    def come_back(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """Runs a server with an empty bucket."""
    server = S3Server()
    try:
        server.create_bucket()
        yield server
    finally:
        server.go_away()


@contextmanager
def running_broker(directory: Path, topic: str, partitions: int) -> Iterator[str]:
    """Runs a broker with an empty topic; yields its address.

    Raises:
        ClickException: The broker does not start.
    """
    environment = {**os.environ, "KEYSCALE_STACK_DIR": str(directory), "KEYSCALE_STACK_KAFKA_JARS": str(_JARS)}

    def control(*arguments: str) -> None:
        command = [str(_KAFKA), *arguments]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603 - our script

    def start() -> bool:
        """Starts the broker on free ports; returns whether it started.

        Another process can take one of its ports first.
        """
        environment["KEYSCALE_STACK_KAFKA_PORT"] = str(free_port())
        try:
            control("start")
        except subprocess.CalledProcessError:
            return False
        return True

    control("install")
    if not any(start() for _ in range(_STARTS_MAX)):
        raise click.ClickException("the demo's broker did not start; the lines above say why")
    try:
        control("create-topic", topic, str(partitions))
        yield f"127.0.0.1:{environment['KEYSCALE_STACK_KAFKA_PORT']}"
    finally:
        control("stop")
