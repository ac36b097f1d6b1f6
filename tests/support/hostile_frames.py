"""Frames as a broken or hostile peer sends them: recorded ones with something changed, and plain noise."""

from __future__ import annotations

import random
import struct

from support.hostile_inputs import conversation, recorded
from support.hostile_worlds import NATIVE, V2, V3, seal

ABSURD = (
    0,
    1,
    0x7F,
    0x80,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
"""Numbers that programs trip over."""
FRAME_BYTES_MAX = 4096
PROTOCOLS = (NATIVE, V2, V3)


class Mutator:
    """Makes frames of each protocol, one after another, from a seed.

    Args:
        chance: decides everything.
        side: "bookie": requests; "client": answers.
        share: how many of the frames are changed; the others bring a connection further.

    Attributes:
        made: frames that were changed, or made of noise.
        canned: the frames that our own programs send, by protocol.
    """

    def __init__(self, chance: random.Random, side: str, share: float) -> None:
        self.made = 0
        self._chance = chance
        self._share = share
        asked, answered = conversation()
        ours = asked if side == "bookie" else answered
        vectors = recorded(">" if side == "bookie" else "<")
        self._frames = {
            protocol: [
                frame
                for frame in ours[protocol] + vectors.get(protocol, [])
                if 8 <= len(frame) <= FRAME_BYTES_MAX
            ]
            for protocol in PROTOCOLS
        }
        self.canned = {protocol: ours[protocol] for protocol in PROTOCOLS}
        self._head_bytes = 96 if side == "bookie" else 56

    def some(self, protocol: int, count: int) -> bytes:
        """A stream of so many frames."""
        frames = self._frames[protocol]
        return self.changed(protocol, self._chance.choices(frames, k=count))

    def changed(self, protocol: int, frames: list[bytes]) -> bytes:
        """A stream of these frames, a share of them mutated."""
        chance = self._chance
        out = []
        for frame in frames:
            if chance.random() >= self._share:
                out.append(frame)
                continue
            self.made += 1
            data = self._mutated(frame, self._frames[protocol])
            if protocol == NATIVE and chance.random() < 0.75:
                # Behind right checksums a frame comes further.
                data = seal(data, self._head_bytes)
            out.append(data)
        return b"".join(out)

    def _mutated(self, frame: bytes, frames: list[bytes]) -> bytes:
        chance = self._chance
        data = bytearray(frame)
        match chance.randrange(9):
            case 0 | 1:
                for _ in range(chance.randrange(1, 6)):
                    data[chance.randrange(4, len(data))] = chance.getrandbits(8)
            case 2:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 3:
                del data[chance.randrange(4, len(data)) :]
                data[:4] = (len(data) - 4).to_bytes(4, "big")
            case 4:
                other = chance.choice(frames)
                data[len(data) // 2 :] = other[len(other) // 2 :]
                data[:4] = (len(data) - 4).to_bytes(4, "big")
            case 5:
                data[:4] = chance.getrandbits(32).to_bytes(4, "big")
            case 6 | 7:
                # A number that is absurd, where a number may be.
                size = chance.choice((4, 8))
                number = chance.choice(ABSURD) & ((1 << 8 * size) - 1)
                at = chance.randrange(4, max(len(data) - size, 5))
                data[at : at + size] = number.to_bytes(size, "big")[: len(data) - at]
            case _:
                noise = chance.randbytes(chance.randrange(1, 300))
                return struct.pack(">I", len(noise)) + noise
        return bytes(data)
