"""What travels between clients and bookies, as plain tuples, and the state of one connection.

| request | fields | answer's payload |
| --- | --- | --- |
| `add` | slot, run, first, last, lac; with a guaranteed write quorum (lac, lafr) | none |
| `lac` | lac | nothing waits |
| `fence` | slot | the bookie's lac; with a guaranteed write quorum (lac, lafr) |
| `read` | slot, first, last, whether it fences | entries, conclusive through, unknown ranges |
| `put` | slot, bookie, first, last, period, stripes, lac | none |
| `copy` | bookie, first, last, its entries as bits, (bookie, bits) of each source that could not give some, lac | none |
| `delete` | | nothing waits |

In a stream's world each names the sender's term last; `read` and `put` before that the origin term, or terms, of what is
read or put. Where terms only fence a `read` names no origin term (0), its answer says those of the entries besides, and
there is `truncate`: slot, bookie, id, whether the no-op of that id comes with it, lac.

A response is (request, `Answer`, payload). A connection carries both in order; what was under way when it broke may
arrive next to what is sent on the next one.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY

Request: TypeAlias = tuple[Any, ...]
Reply: TypeAlias = tuple[Request, Answer, Any]


DROP: Final[Request] = ("drop",)


class Link(NamedTuple):
    """One client's connection to one bookie.

    Attributes:
        requests: (request, whether the client still waits), oldest first.
        replies: oldest first.
        broken: requests of connections that broke, oldest first; no client waits for them.
    """

    requests: tuple[tuple[Request, bool], ...] = ()
    replies: tuple[Reply, ...] = ()
    broken: tuple[Request, ...] = ()

    def sent(self, request: Request) -> Link:
        """With one more request; `DROP` removes what did not leave."""
        if request is DROP:
            return self._replace(requests=())
        return self._replace(requests=(*self.requests, (request, request[0] not in ("lac", "delete"))))

    def answered(self, reply: Reply) -> Link:
        """With one more reply."""
        return self._replace(replies=(*self.replies, reply))

    def given_up(self, request: Request) -> Link:
        """The client does not wait for this one any more; it may still happen."""
        requests = tuple((each, waits and each != request) for each, waits in self.requests)
        return self._replace(
            requests=requests, replies=tuple(reply for reply in self.replies if reply[0] != request)
        )

    def cut(self) -> Link:
        """The connection broke: each waiting request fails, though it may still arrive."""
        failed = tuple((request, Answer.UNREACHABLE, None) for request, waits in self.requests if waits)
        return Link((), (*self.replies, *failed), (*self.broken, *(request for request, _ in self.requests)))

    def died(self) -> Link:
        """The bookie is lost: what did not reach it never will."""
        failed = tuple((request, Answer.UNREACHABLE, None) for request, waits in self.requests if waits)
        return Link((), (*self.replies, *failed))


def lacs_of(reply: Any) -> tuple[int, int]:
    """(LAC, LAFR) of a request's header, or of the response to a fence; `NO_ENTRY` where it says nothing of one."""
    if isinstance(reply, tuple):
        lac, lafr = reply
        return lac, lafr
    return (NO_ENTRY if reply is None else reply), NO_ENTRY


def request_text(request: Request) -> str:
    """A request as transcripts write it."""
    match request:
        case ("add", _, _, first, last, (lac, lafr)):
            return f"add {first}..{last} lac={lac}{_lafr_text(' lafr=', lafr)}"
        case ("add", _, _, first, last, lac, *term):
            return f"add {first}..{last} lac={lac}{_terms_text(term)}"
        case ("lac", lac, *term):
            return f"explicit lac={lac}{_terms_text(term)}"
        case ("fence", _, *term):
            return f"fence, read lac{_terms_text(term)}"
        case ("read", _, first, last, fence, *terms):
            return f"{'fence, ' if fence else ''}read {first}..{last}{_terms_text(terms)}"
        case ("put", _, _, first, last, period, stripes, lac, *terms):
            stripes_text = (
                ""
                if period == 1
                else f" stripes {[r for r in range(period) if stripes >> r & 1]} of {period}"
            )
            return f"recovery add {first}..{last}{stripes_text} lac={lac}{_terms_text(terms)}"
        case ("copy", _, first, last, bits, _, origin, term):
            return f"copies of {first}..{last}: {entries_text(bits)}{_terms_text([origin, term])}"
        case ("truncate", _, _, first, no_op, lac, term):
            return f"{f'no-op {first}, ' if no_op else ''}truncate {first} lac={lac} in term {term}"
        case ("copy", _, first, last, bits, *_):
            return f"copies of {first}..{last}: {entries_text(bits)}"
    return str(request[0])


def _lafr_text(name: str, lafr: int) -> str:
    return "" if lafr == NO_ENTRY else f"{name}{lafr}"


def _terms_text(terms: list[Any]) -> str:
    """What a stream's request names besides: of entries their origin terms, and the sender's term."""
    if not terms:
        return ""
    origins = f" of term {' '.join(map(str, terms[0])) if isinstance(terms[0], tuple) else terms[0]}"
    return f"{origins if len(terms) > 1 else ''} in term {terms[-1]}"


def entries_text(bits: int) -> str:
    """Entries, which are bits, by their ids."""
    return " ".join(str(entry) for entry in range(bits.bit_length()) if bits >> entry & 1) or "nothing"


def reply_text(reply: Reply) -> str:
    """A reply as transcripts write it."""
    request, answer, payload = reply
    text = f"{answer.name} to {request_text(request)}"
    if request[0] == "fence" and answer is Answer.OK:
        lac, lafr = lacs_of(payload)
        return f"{text}: lac {lac}{_lafr_text(' lafr ', lafr)}"
    if request[0] == "read" and answer is Answer.OK:
        entries, through, unknown, *origins = payload
        terms = f" of term {' '.join(map(str, origins[0]))}" if origins and entries else ""
        return f"{text}: has {list(entries) or 'nothing'}{terms}, conclusive through {through}" + (
            f", unknown {list(unknown)}" if unknown else ""
        )
    return text
