"""Counts the waiting records of Spark's own Kafka source.

Spark reads the stream. The driver asks the brokers for the ends of its partitions with a client of its own, also
without Spark, while the job sleeps.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

from ..kafka_client import within
from .kafka import KafkaSource, positions_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import TopicPartition

    from .positions import BatchPositions
    from .source import Position

_PREFIX = "kafka."
_SAME = frozenset({"security.protocol", "sasl.mechanism", "isolation.level", "client.id", "client.rack"})
"""Settings with the same name and meaning in both clients."""
_HANDLED = frozenset(
    {
        "sasl.jaas.config",
        "ssl.endpoint.identification.algorithm",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
    }
)
_SECURITY = ("sasl.", "ssl.")
_JAAS = re.compile(r"\S*\.(?:Plain|Scram)LoginModule\s+required\s+(?P<options>.*);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s;]+))")
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})


class SparkKafkaSource(KafkaSource):
    """The partitions of a stream of Spark's own Kafka source.

    Its positions lack the ids of topics, as Spark's do.

    Args:
        servers: Addresses of brokers, separated by commas.
        topics: The topics; empty with a pattern.
        pattern: The pattern of the topics' names.
        partitions: The numbers of the assigned partitions by topic; by default all.
        starting: Where the stream begins.
        config: Settings of the client.
    """

    def __init__(
        self,
        servers: str,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        partitions: Mapping[str, Collection[int]] | None = None,
        starting: Literal["earliest", "latest"] = "latest",
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(servers, tuple(topics), starting=starting, config=config)
        self._pattern = None if pattern is None else re.compile(pattern)
        self._assigned = partitions

    def discover(self, known: Collection[str]) -> Mapping[str, Position]:
        if self._pattern is not None:
            self._topics = tuple(name for name in self._names() if self._pattern.fullmatch(name))
        return super().discover(known)

    @staticmethod
    def positions_of(offsets: Mapping[str, Mapping[str, int]]) -> BatchPositions:
        """Returns the positions in Spark's record of a batch."""
        return positions_at(offsets)

    def _names(self) -> list[str]:
        listed = within(self._timeout_seconds, lambda: self._client().list_topics(timeout=self._timeout_seconds))
        return sorted(set(listed.topics) - _INTERNAL)

    def _listed(self, topic: str) -> list[TopicPartition]:
        found = super()._listed(topic)
        return found if self._assigned is None else [each for each in found if each.partition in self._assigned[topic]]


def kafka_of(options: Mapping[str, str]) -> SparkKafkaSource | None:
    """Returns the source that a stream of Spark's Kafka source reads.

    Args:
        options: The options of the stream, with names in lower case.

    Returns:
        None if the driver's client cannot connect as the options say.
    """
    servers = options.get("kafka.bootstrap.servers")
    config = _config({name.removeprefix(_PREFIX): text for name, text in options.items() if name.startswith(_PREFIX)})
    if servers is None or config is None:
        return None
    starting: Literal["earliest", "latest"] = "earliest" if options.get("startingoffsets") == "earliest" else "latest"
    if (topics := options.get("subscribe")) is not None:
        return SparkKafkaSource(servers, [each.strip() for each in topics.split(",")], starting=starting, config=config)
    if (assigned := options.get("assign")) is not None:
        numbers: dict[str, list[int]] = json.loads(assigned)
        return SparkKafkaSource(servers, list(numbers), partitions=numbers, starting=starting, config=config)
    try:
        return SparkKafkaSource(servers, pattern=options["subscribepattern"], starting=starting, config=config)
    except (KeyError, re.error):  # Java knows more patterns
        return None


def _config(given: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the settings of librdkafka for settings of the Java client.

    Other settings than those of the connection have no meaning here. None: a setting of the connection is unknown.
    """
    if any(name.startswith(_SECURITY) and name not in _SAME | _HANDLED for name in given):
        return None
    config: dict[str, str] = {"isolation.level": "read_uncommitted"}  # the default of the Java client
    config |= {name: text for name, text in given.items() if name in _SAME}
    if (checked := given.get("ssl.endpoint.identification.algorithm")) is not None:
        config["ssl.endpoint.identification.algorithm"] = checked or "none"
    if given.get("ssl.truststore.type", "PEM") != "PEM" or (
        "ssl.truststore.location" in given and "ssl.truststore.type" not in given
    ):
        return None  # a store of Java
    if (file := given.get("ssl.truststore.location")) is not None:
        config["ssl.ca.location"] = file
    if (certificates := given.get("ssl.truststore.certificates")) is not None:
        config["ssl.ca.pem"] = certificates
    if (jaas := given.get("sasl.jaas.config")) is not None:
        login = _login(jaas)
        if login is None:
            return None
        config |= login
    return config


def _login(jaas: str) -> dict[str, str] | None:
    """Returns the user and the password of a login module.

    None: another module.
    """
    found = _JAAS.fullmatch(jaas.strip())
    if found is None:
        return None
    options = {name: "".join(texts) for name, *texts in _JAAS_OPTION.findall(found["options"])}
    if not {"username", "password"} <= options.keys():
        return None
    return {"sasl.username": options["username"], "sasl.password": options["password"]}
