"""Which of Java's exceptions tell of an outage: of a catalog or a store that is away, or lets nobody in.

What they tell of passes, and the same call may work a minute later; of all others nobody can say that. Looked
at is the whole chain of causes, since Iceberg wraps what its clients throw. Names are compared, not classes:
of most catalogs the client is not there.
"""

from __future__ import annotations

from typing import Any

_CAUSES_MAX = 20  # a chain may come back to itself

_PACKAGES = (
    "java.net.",  # refused, reset, unknown host, timed out
    "java.nio.channels.",
    "java.sql.SQLTransient",
    "java.sql.SQLRecoverable",
    "java.sql.SQLNonTransientConnection",
    "javax.net.ssl.",
    "org.apache.hadoop.net.",
    "org.apache.hc.core5.http.",
    "org.apache.thrift.transport.",
)
_NAMES = frozenset(
    {
        "java.util.concurrent.TimeoutException",
        "org.apache.hadoop.ipc.RemoteException",
        "org.apache.iceberg.exceptions.CommitStateUnknownException",
        "org.apache.iceberg.exceptions.ForbiddenException",
        "org.apache.iceberg.exceptions.NotAuthorizedException",  # a token that ran out
        "org.apache.iceberg.exceptions.RESTException",
        "org.apache.iceberg.exceptions.ServiceFailureException",
        "org.apache.iceberg.exceptions.ServiceUnavailableException",
        "org.apache.iceberg.jdbc.UncheckedSQLException",
        "org.apache.iceberg.jdbc.UncheckedInterruptedException",
        "software.amazon.awssdk.core.exception.SdkClientException",
    }
)


def is_outage(exception: Any) -> bool:
    """`exception`: Java's, by py4j."""
    for _ in range(_CAUSES_MAX):
        if exception is None:
            return False
        name = str(exception.getClass().getName())
        if name in _NAMES or name.startswith(_PACKAGES):
            return True
        exception = exception.getCause()
    return False
