"""How a time is written, for every surface that takes one as text: the command line and Spark's options.

Source: docs/log-commands.md, "Where a read begins and ends".
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from quire.core.errors import MisuseError

TIME_MS_MIN: Final = -62_135_596_800_000
"""The earliest time that a record can have: the year 1 begins. Spark's timestamps and Python's have the same range."""
TIME_MS_MAX: Final = 253_402_300_799_999
"""The latest one: the last millisecond of the year 9999."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_RELATIVE: Final = re.compile(r"-(\d{1,15})(ms|s|m|h|d|w)")
_NUMBER: Final = re.compile(r"@?(-?[0-9]{1,19})")
_SECONDS: Final = range(10**9, 10**10)
"""Ten digits: a time of 2001 to 2286 in seconds; as milliseconds one of the first months of 1970."""


def parse_time(text: str, takes: str, now_ms: int | None = None) -> int:
    """A time in milliseconds since 1970, within the years 1 to 9999.

    Args:
        text: ISO 8601 (UTC without a zone), or milliseconds since 1970, with or without a leading @.
        takes: the beginning of the sentence for what is no time, as `--until takes ISO 8601 or milliseconds`.
        now_ms: what `now` and relative times such as `-1h` are counted from; None where those make no sense.

    Raises:
        MisuseError: it is no time, or seconds where milliseconds are meant.
    """
    word = text.strip()
    if (number := _NUMBER.fullmatch(word)) is not None:
        ms = int(number[1])
        if ms in _SECONDS:
            raise MisuseError(
                f"{takes}; {word} looks like seconds since 1970: {ms * 1000} is the same time in milliseconds."
            )
    elif now_ms is not None and word == "now":
        ms = now_ms
    elif now_ms is not None and (relative := _RELATIVE.fullmatch(word)) is not None:
        ms = now_ms - int(relative[1]) * _UNITS_MS[relative[2]]
    else:
        try:
            moment = datetime.fromisoformat(word)
        except ValueError as error:
            raise MisuseError(f"{takes}; not {text!r}.") from error
        # A machine's own zone would differ from one machine to the next.
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        ms = round((aware - _EPOCH) / timedelta(milliseconds=1))
    if not TIME_MS_MIN <= ms <= TIME_MS_MAX:
        raise MisuseError(f"{takes}; {word} lies outside the years 1 to 9999.")
    return ms


def milliseconds(moment: datetime) -> int:
    """An aware datetime in milliseconds since 1970; a part of one counts as a whole, since a record is as late as it or not."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
