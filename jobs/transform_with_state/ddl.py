"""A parser of state schemas in DDL, without a JVM.

A processor also declares its states in the workers, which have no JVM. The parser reads columns `name type [NOT NULL]
[COMMENT '...']`, separated by commas, with atomic types, `decimal(p, s)`, `array<...>`, `map<..., ...>` and
`struct<name: type, ...>`. Spark's parser reads more; a test compares both.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import types as T  # noqa: N812 - as usual in PySpark

from ..errors import InvalidSchemaError

_TOKEN: Final = re.compile(
    r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))"
)
_ATOMIC: Final[dict[str, T.DataType]] = {
    "bigint": T.LongType(),
    "binary": T.BinaryType(),
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "date": T.DateType(),
    "double": T.DoubleType(),
    "float": T.FloatType(),
    "int": T.IntegerType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "real": T.FloatType(),
    "short": T.ShortType(),
    "smallint": T.ShortType(),
    "string": T.StringType(),
    "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "tinyint": T.ByteType(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")


def parse_columns(ddl: str) -> T.StructType:
    """Returns the columns that a DDL string declares.

    Raises:
        InvalidSchemaError: The string cannot be parsed.
    """
    return T.StructType(_Parser(ddl).fields(end=None))


class _Parser:
    """A recursive-descent parser."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens: list[str] = []
        at = 0
        text = ddl.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error()
            self._tokens.append(found[0].strip())
            at = found.end()
        self._tokens.reverse()  # so that `pop` returns the next token

    def fields(self, *, end: str | None) -> list[T.StructField]:
        fields = []
        while True:
            fields.append(self._field())
            if not self._accept(","):
                break
        if self._take() != end:
            raise self._error()
        return fields

    def _field(self) -> T.StructField:
        name = self._name()
        self._accept(":")
        of_type = self._type()
        nullable = True
        if self._accept("not"):
            if not self._accept("null"):
                raise self._error()
            nullable = False
        if self._accept("comment"):
            self._take()
        return T.StructField(name, of_type, nullable)

    def _name(self) -> str:
        token = self._take()
        if token is None:
            raise self._error()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not token[0].isalpha() and token[0] != "_":
            raise self._error()
        return token

    def _type(self) -> T.DataType:
        name = (self._take() or "").lower()
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            self._expect("<")
            item = self._type()
            self._expect(">")
            return T.ArrayType(item)
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return T.MapType(key, value)
        if name == "struct":
            self._expect("<")
            return T.StructType(self.fields(end=">"))
        if name not in _ATOMIC:
            raise self._error()
        return _ATOMIC[name]

    def _decimal(self) -> T.DecimalType:
        if not self._accept("("):
            return T.DecimalType(10, 0)
        precision, scale = self._number(), 0
        if self._accept(","):
            scale = self._number()
        self._expect(")")
        return T.DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._take()
        if token is None or not token.isdigit():
            raise self._error()
        return int(token)

    def _accept(self, token: str) -> bool:
        if self._tokens and self._tokens[-1].lower() == token:
            self._tokens.pop()
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error()

    def _take(self) -> str | None:
        return self._tokens.pop() if self._tokens else None

    def _error(self) -> InvalidSchemaError:
        return InvalidSchemaError(f"the state schema {self._ddl!r} cannot be parsed here; give it as a StructType")
