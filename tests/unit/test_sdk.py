"""The names that users import: each is listed once, is there, and costs only what it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import keyscale
import keyscale.state
import keyscale.testing
from keyscale.state.keyed.schema import StateKind

FACADES = (keyscale, keyscale.state)


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in FACADES for name in package.__all__],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_every_listed_name_is_the_one_of_its_module(package: ModuleType, name: str) -> None:
    module = package._MODULES[name]
    offered = getattr(package, name)
    assert offered is getattr(import_module(module), name)
    if isinstance(offered, type | FunctionType):
        assert offered.__module__ == module, "it is listed by its home, not by a module that imports it"


@pytest.mark.parametrize("package", FACADES, ids=lambda package: package.__name__)
def test_the_classes_that_a_ttl_or_a_descriptor_takes_are_offered_with_it(package: ModuleType) -> None:
    descriptors = [getattr(keyscale, name) for name in keyscale.__all__ if name.endswith("Descriptor")]
    assert {each.kind for each in descriptors} == set(StateKind)
    for owner in (keyscale.Ttl, keyscale.Cleanup, *descriptors):
        taken = {name for each in fields(owner) for name in re.findall(r"[A-Z]\w+", str(each.type))}
        missing = taken - {"None", "DataType"} - set(package.__all__)
        assert not missing, f"{owner.__name__} takes {missing}"
    # Types of values, which are Arrow types.
    assert {"Structured", "Pickled"} <= set(package.__all__)


def test_the_names_are_those_of_the_stub() -> None:
    lines = Path(keyscale.__file__).with_suffix(".pyi").read_text().splitlines()
    assert [line.split()[-1] for line in lines if line] == [line.split()[3] for line in lines if line]
    assert sorted(line.split()[-1] for line in lines if line) == keyscale.__all__ == dir(keyscale)


@pytest.mark.parametrize("package", FACADES, ids=lambda package: package.__name__)
def test_a_name_that_is_not_listed_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{re.escape(package.__name__)}' has no attribute 'Stream'"):
        _ = package.Stream


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(keyscale.__file__).with_name("py.typed").is_file()


def test_the_harness_is_offered_by_the_testing_module() -> None:
    assert [getattr(keyscale.testing, name).__name__ for name in keyscale.testing.__all__] == keyscale.testing.__all__


def test_importing_the_sdk_or_a_descriptor_loads_neither_spark_nor_a_client() -> None:
    program = """
import sys
import keyscale
assert keyscale.ValueStateDescriptor and keyscale.FixedDelayRestart
heavy = {"pyspark", "confluent_kafka", "psycopg"} & set(sys.modules)
assert not heavy, heavy
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
