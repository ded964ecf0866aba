"""What a destination's trouble is taken for, by what Java throws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from penstock.core.errors import DestinationAwayError, DestinationError
from penstock.destinations.iceberg_java import iceberg_errors
from penstock.destinations.iceberg_outages import is_outage

_ICEBERG = "org.apache.iceberg.exceptions."


@dataclass
class JavaException:
    """As py4j shows one."""

    name: str
    cause: JavaException | None = None
    _target_id: str = "o1"

    def getClass(self) -> Self:
        return self

    def getName(self) -> str:
        return self.name

    def getCause(self) -> JavaException | None:
        return self.cause


OUTAGES = [
    JavaException(f"{_ICEBERG}ServiceUnavailableException"),
    JavaException(f"{_ICEBERG}RESTException"),
    JavaException("org.apache.iceberg.jdbc.UncheckedSQLException"),
    JavaException(f"{_ICEBERG}RuntimeIOException", JavaException("java.net.ConnectException")),
    JavaException(
        "a.Wrapper", JavaException("another.Wrapper", JavaException("java.net.UnknownHostException"))
    ),
]
OTHERS = [
    JavaException(f"{_ICEBERG}ValidationException"),
    JavaException(f"{_ICEBERG}NotFoundException", JavaException("java.io.FileNotFoundException")),
    JavaException(f"{_ICEBERG}RuntimeIOException", JavaException("java.io.EOFException")),
]


@pytest.mark.parametrize("exception", OUTAGES, ids=lambda each: each.name)
def test_an_outage_is_told_from_what_is_wrong_with_a_table(exception: JavaException) -> None:
    with pytest.raises(DestinationAwayError), iceberg_errors("committing"):
        raise Py4JJavaError("", exception)


@pytest.mark.parametrize("exception", OTHERS, ids=lambda each: each.name)
def test_what_no_wait_would_mend_is_no_outage(exception: JavaException) -> None:
    with pytest.raises(DestinationError) as failed, iceberg_errors("committing"):
        raise Py4JJavaError("", exception)
    assert not isinstance(failed.value, DestinationAwayError)


def test_a_jvm_that_does_not_answer_says_nothing_of_a_table() -> None:
    with pytest.raises(DestinationAwayError), iceberg_errors("committing"):
        raise Py4JNetworkError("connection reset")


def test_causes_that_come_back_to_themselves_end() -> None:
    exception = JavaException("a.Wrapper")
    exception.cause = exception
    assert not is_outage(exception)
