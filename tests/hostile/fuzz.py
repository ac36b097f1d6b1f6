"""Coverage-guided fuzzing of what a bookie, or a client, makes of the bytes of a peer.

    python tests/hostile/fuzz.py {bookie|client} [CPU_SECONDS] [FOLDER]

Needs atheris, installed beside the development environment; several processes may share a folder. FOLDER collects inputs
that reach something new; whatever the programs raise is kept beside it, once a place. `keep_seeds.py` puts a corpus into
`seeds.json.gz`, which the tests replay.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INPUT_BYTES_MAX = 4096
HANGS_SECONDS = 20
"""An input that takes so much time of the processor is a hang."""
PARTS = ["quire.wire", "quire.net", "quire.bookie", "quire.client", "quire.core"]


def main() -> None:
    side, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 600
    folder = Path(sys.argv[3] if len(sys.argv) > 3 else ROOT / "out" / "fuzz" / side)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    import atheris

    with atheris.instrument_imports(include=PARTS):
        from support.hostile_inputs import beginnings
        from support.hostile_worlds import LIVES, StillBookie, StillClient
    logging.disable(logging.CRITICAL)
    corpus, findings = folder / "corpus", folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    for data in beginnings(side):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)

    def hangs(*_: object) -> None:
        raise TimeoutError(f"one input took {HANGS_SECONDS} s of the processor")

    signal.signal(signal.SIGPROF, hangs)
    state = {"world": None, "left": 0, "inputs": 0, "found": 0}
    kept = folder / f"figures-{os.getpid()}.json"
    cpu = time.process_time()

    # Whatever the world that lives now has been fed: what it took to get it into a state that is a finding.
    life = (folder / f"life-{os.getpid()}").open("wb", buffering=0)

    def one(data: bytes) -> None:
        state["inputs"] += 1
        if not state["left"]:
            life.seek(0)
            life.truncate()
            state["world"], state["left"] = (StillBookie if side == "bookie" else StillClient)(), LIVES
        state["left"] -= 1
        life.write(len(data).to_bytes(4, "big") + data)
        signal.setitimer(signal.ITIMER_PROF, HANGS_SECONDS)
        try:
            if side == "bookie":
                state["world"].serve(data)
                if not state["left"]:
                    assert state["world"].intact()
            else:
                state["world"].hear(data)
        except Exception as error:
            state["left"] = 0
            state["found"] += 1
            frames = traceback.extract_tb(error.__traceback__)
            place = hashlib.sha1("".join(f"{f.filename}:{f.lineno}" for f in frames).encode()).hexdigest()[
                :12
            ]
            if not (findings / place).exists():
                (findings / place).write_bytes(data)
                (findings / f"{place}.txt").write_text(traceback.format_exc())
        if state["inputs"] % 200 == 0:
            spent = time.process_time() - cpu
            figures = {
                "side": side,
                "inputs": state["inputs"],
                "cpu_seconds": round(spent),
                "corpus": len(list(corpus.iterdir())),
                "findings": len(list(findings.glob("*.txt"))),
            }
            kept.write_text(json.dumps(figures) + "\n")
            if spent > seconds:
                os._exit(0)

    limits = [f"-max_len={INPUT_BYTES_MAX}", "-timeout=100000", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
