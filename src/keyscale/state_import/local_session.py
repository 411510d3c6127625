"""A Spark session on this host for an import."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.jvm_output import without_greeting
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def local_session(conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Starts a Spark session with further settings; stops it at the end."""
    settings = settings_of(conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # other hosts have no business with it
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with without_greeting():
        session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def settings_of(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a session with a user's settings."""
    return {
        **DEFAULT_SETTINGS,
        **ClassArchive.of_environment().settings(),
        **LOCAL_SETTINGS,
        "spark.master": "local[*]",
        "spark.app.name": "keyscale-import",
        "spark.authenticate": "true",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        **conf,
        **REQUIRED_SETTINGS,
    }
