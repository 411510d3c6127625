"""A real HTTP server that speaks S3, bound to this machine only."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from moto.server import ThreadedMotoServer

from keyscale.deploy.demo.outage import servers

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server listens."""

    endpoint_url: str

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - the server takes any
        )
        client.create_bucket(Bucket=name)
        return name

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which a process uses it."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }


class RestartableS3Server(servers.S3Server):
    """A server that can be stopped and started again with all that it holds, at the same address."""

    @property
    def server(self) -> S3Server:
        return S3Server(self.url)


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """Starts the server on a free port and stops it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()
