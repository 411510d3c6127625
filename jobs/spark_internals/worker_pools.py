"""Two pools of Python workers on each executor, of which one runs the batches.

The stores of the next attempt are prepared in the workers of the other pool, and its batches run there. In one pool, a
worker that prepares a store would be busy for the batches that have their state in it.

Spark has a daemon, and so a pool of workers, for each set of environment variables that Python functions ask for. That
is undocumented (Spark 4.3, `PythonWorkersKey`); if it changes, both attempts share their workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.core.rdd import RDD

T = TypeVar("T")
POOLS = 2
_VARIABLE = "KEYSCALE_WORKER_POOL"


def use_pool(context: SparkContext, pool: int) -> None:
    """Runs the Python functions of later jobs in a pool.

    Pool 0 is Spark's own.
    """
    context.environment = environment_of(context.environment, pool)


def in_pool(rdd: RDD[T], pool: int) -> RDD[T]:
    """Returns an RDD whose last Python function runs in a pool."""
    rdd.ctx = _PoolContext(rdd.ctx, pool)  # type: ignore[assignment] # it stands in
    return rdd


def environment_of(environment: dict[str, str], pool: int) -> dict[str, str]:
    """Returns the environment variables of a pool's workers."""
    others = {name: value for name, value in environment.items() if name != _VARIABLE}
    return {**others, _VARIABLE: str(pool)} if pool else others


class _PoolContext:
    """A context with the environment variables of a pool."""

    def __init__(self, context: SparkContext, pool: int) -> None:
        self._context = context
        self.environment = environment_of(context.environment, pool)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
