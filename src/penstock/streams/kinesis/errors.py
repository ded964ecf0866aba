"""What Kinesis' errors mean. A whole call fails for the stream, the account or the way there, and is tried
without end, unless a record makes it invalid. Of a single record the service says one of these:

- it can never be taken: its size, or a key or data that cannot be said. A dead letter at once;
- the stream, its shard or the account cannot take it now: throttling, rights, keys of encryption. Tried
  without end;
- anything else, such as `InternalFailure`: it may pass, and is tried `retry_max_attempts` times, while its
  shard takes others (`record_flow`).
"""

from __future__ import annotations

from penstock.core.errors import TargetError
from penstock.streams.error_classes import ErrorClass, ErrorTable

TOO_LARGE = "RecordTooLarge"
NOT_SENT = "NotSent"  # because of what happened to another record of the call
WRONG_SHARD = "WrongShard"  # its aggregate went where its key does not belong: readers pass it over
#: A whole call is refused with one of these because of some record in it.
INVALID_CODES = frozenset({"ValidationException", "InvalidArgumentException", "SerializationException"})

_OF_THE_TARGET = (
    NOT_SENT,
    WRONG_SHARD,
    "AccessDeniedException",
    "ExpiredTokenException",
    "KMSAccessDeniedException",
    "KMSDisabledException",
    "KMSInvalidStateException",
    "KMSNotFoundException",
    "KMSOptInRequired",
    "KMSThrottlingException",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ResourceInUseException",
    "ResourceNotFoundException",
    "ServiceUnavailable",
    "ThrottlingException",
    "UnrecognizedClientException",
)

ERRORS = ErrorTable(
    by_code={
        TOO_LARGE: ErrorClass.POISON,
        **dict.fromkeys(INVALID_CODES, ErrorClass.POISON),
        **dict.fromkeys(_OF_THE_TARGET, ErrorClass.TARGET),
    },
    otherwise=ErrorClass.RECORD,
)

_REASON_MAX = 300
_TRIED_AGAIN = "Nothing, if it passes: it is tried again and again, and the position is held."
_REMEDIES = {
    "AccessDeniedException": "Allow kinesis:PutRecords, GetRecords, GetShardIterator, ListShards and"
    " DescribeStreamSummary on the stream. It is tried again.",
    "ResourceNotFoundException": "Create the stream, or correct `lanes.kinesis.stream` and `region`.",
    "ExpiredTokenException": "Renew the credentials where the AWS tools find them; they are read again.",
    "UnrecognizedClientException": "Correct the credentials where the AWS tools find them.",
    "SSLError": "Check `lanes.kinesis.endpoint`, and that its certificate is trusted here. It is tried on.",
    "ProvisionedThroughputExceededException": f"{_TRIED_AGAIN} If it lasts, the stream needs more shards.",
}


def classify(code: str, message: str = "") -> ErrorClass:
    return ERRORS.classify(code, message)


def reason_of(code: str, message: str) -> str:
    """What a letter says of a record that was refused alone: the service's own words of account, stream and
    shard. What it says of a call that is refused for a record's sake quotes its values, and is not kept.
    """
    if code in INVALID_CODES or not message:
        return f"{code}: refused by the service"
    return f"{code}: {message[:_REASON_MAX]}"


class CallError(Exception):
    """A call failed; `is_lost`: and nobody can tell whether it was carried out."""

    def __init__(self, code: str, *, is_lost: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.is_lost = is_lost

    def as_target_error(self, operation: str, stream: str) -> TargetError:
        return TargetError(
            f"Kinesis answered {operation} for stream {stream} with {self.code}.",
            remedy=_REMEDIES.get(self.code, _TRIED_AGAIN),
        )
