"""Parts of shapes as answers: whole, in a stream, or not at all if the client has it; encoded as it likes."""

from __future__ import annotations

from penstock.core.offset import LogOffset
from penstock.shapes.http import answers
from penstock.shapes.http.answers import AnswerMaker
from penstock.shapes.http.asked import Asked
from penstock.shapes.http.bodies import Bodies, whole_array
from penstock.shapes.http.compression import SMALL_BYTES, Body
from penstock.shapes.http.message import Answer, Pieces, Stream
from penstock.shapes.shape import Shape

_COMPRESSED_AT_ONCE_MAX = 16 * 1024  # beyond that, it would keep others waiting


class Delivery:
    """Used in the loop's thread. `end` is the offset that the answer reaches."""

    def __init__(self, maker: AnswerMaker, bodies: Bodies) -> None:
        self.maker = maker
        self.bodies = bodies

    def not_modified(self, asked: Asked, shape: Shape, end: LogOffset, *, up_to_date: bool) -> Answer | None:
        """If that is what the client has."""
        if asked.if_none_match is None:
            return None
        tag = answers.matching(
            asked.if_none_match, answers.etag(shape.handle, asked.request, end, changed=True)
        )
        if tag is None:
            return None
        return self.maker.not_modified(shape, asked.request, end, tag, up_to_date=up_to_date, post=asked.post)

    async def whole(
        self,
        asked: Asked,
        shape: Shape,
        end: LogOffset,
        body: Body,
        *,
        up_to_date: bool,
        has_data: bool = True,
    ) -> Answer:
        if not self.is_at_hand(asked, body):
            await self.bodies.off_loop(lambda: body.encoded(asked.encoding))
        return self.at_once(asked, shape, end, body, up_to_date=up_to_date, has_data=has_data)

    @staticmethod
    def is_at_hand(asked: Asked, body: Body) -> bool:
        return body.has(asked.encoding) or len(body.raw) <= _COMPRESSED_AT_ONCE_MAX

    def at_once(
        self,
        asked: Asked,
        shape: Shape,
        end: LogOffset,
        body: Body,
        *,
        up_to_date: bool,
        has_data: bool = True,
    ) -> Answer:
        known = self.not_modified(asked, shape, end, up_to_date=up_to_date)
        if known is not None:
            return known
        encoding = asked.encoding if len(body.raw) >= SMALL_BYTES else None
        return self.maker.of_shape(
            shape,
            asked.request,
            end,
            body.encoded(encoding),
            up_to_date=up_to_date,
            has_data=has_data,
            post=asked.post,
            encoding=encoding,
        )

    def streamed(
        self, asked: Asked, shape: Shape, end: LogOffset, pieces: Pieces, *, up_to_date: bool
    ) -> Answer:
        return self.maker.of_shape(
            shape,
            asked.request,
            end,
            Stream(self.bodies.compressed(pieces, asked.encoding)),
            up_to_date=up_to_date,
            has_data=True,
            post=asked.post,
            encoding=asked.encoding,
        )

    def unchanged(self, asked: Asked, shape: Shape, end: LogOffset, lsn: int) -> Answer:
        """That there is nothing new, and what all shapes have seen."""
        body = whole_array(b"", answers.up_to_date(lsn))
        return self.maker.of_shape(
            shape, asked.request, end, body, up_to_date=True, has_data=False, post=asked.post
        )
