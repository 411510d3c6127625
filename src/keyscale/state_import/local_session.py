"""A Spark session on this host for an import."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def local_session(conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Starts a Spark session with further settings; stops it at the end."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **LOCAL_SETTINGS,
        "spark.master": "local[*]",
        "spark.app.name": "keyscale-import",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        **conf,
        **REQUIRED_SETTINGS,
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
