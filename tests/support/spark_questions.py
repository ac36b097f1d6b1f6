"""Random questions to Spark about logs, each with the answer that the client's records give.

A `Part` is a frame or a view of some logs, read with random options, and the records that it must have. Several questions are
asked of each part, since what one question leaves behind may reach the next. Pure but for the calls of Spark.
"""

from dataclasses import dataclass

from quire.spark import read_options

SCHEMA = "log string, offset bigint, key binary, value binary, timestamp timestamp"
COLUMNS = "log, offset, key, value, unix_millis(timestamp) AS ms"


@dataclass(frozen=True)
class Row:
    """What a record is to Spark; `ms` is None for a time that no timestamp can show."""

    log: str
    offset: int
    key: bytes | None
    value: bytes | None
    ms: int | None
    headers: tuple | None

    def shown(self):
        return self.log, self.offset, self.key, self.value, self.ms


@dataclass(frozen=True)
class Part:
    """A frame that is registered as view `name`, what it was read with, and its records."""

    frame: object
    name: str
    rows: list
    options: dict


def conditions(chance, rows):
    """Random conditions, as SQL (which takes a bare `offset` behind WHERE for its own word at times) and as a function of a row that is true, false, or None as in SQL."""
    offset = chance.choice(rows).offset if rows else 5
    ms = chance.choice(rows).ms if rows else 5
    few = tuple(chance.choice(rows).offset if rows else 1 for _ in range(3))
    log = chance.choice(rows).log if rows else "none"
    yield f"`offset` < {offset}", lambda row: row.offset < offset
    yield f"`offset` >= {offset}", lambda row: row.offset >= offset
    yield f"`offset` = {offset}", lambda row: row.offset == offset
    yield f"`offset` IN {few}", lambda row: row.offset in few
    yield f"`offset` <> {offset}", lambda row: row.offset != offset
    yield f"log = '{log}'", lambda row: row.log == log
    yield "key IS NULL", lambda row: row.key is None
    yield "value IS NOT NULL", lambda row: row.value is not None
    yield "timestamp IS NULL", lambda row: row.ms is None
    if ms is not None:
        yield f"timestamp >= timestamp_millis({ms})", lambda row: row.ms is not None and row.ms >= ms
        yield f"timestamp < timestamp_millis({ms})", lambda row: row.ms is not None and row.ms < ms


def condition(chance, rows):
    """One condition, or two joined."""
    text, holds = chance.choice(list(conditions(chance, rows)))
    if chance.random() < 0.6:
        return text, holds
    other, holds_too = chance.choice(list(conditions(chance, rows)))
    if chance.random() < 0.5:
        return f"({text} AND {other})", lambda row: holds(row) and holds_too(row)
    return f"({text} OR {other})", lambda row: holds(row) or holds_too(row)


def make_part(chance, spark, uri, logs, name):
    """A part of some of the logs.

    Args:
        chance: what is random.
        spark: the session.
        uri: the cluster.
        logs: the records of each log by its name, in order.
        name: of the view.
    """
    chosen = chance.sample(sorted(logs), chance.randint(1, len(logs)))
    rows = [row for log in chosen for row in logs[log]]
    more = {
        "splitBytes": chance.choice(["1k", "4k", None]),
        "rowsPerBatch": chance.choice([7, None]),
        "minPartitions": chance.choice([3, None]),
        "includeHeaders": chance.choice([True, None]),
        "isolation": chance.choice(["sealed", None]),
        "verify": chance.choice(["none", None]),
    }
    asked = {}
    times = sorted(row.ms for row in rows if row.ms is not None)
    side = chance.choice(["offsets", "times", "both", "all"])
    if side in {"offsets", "both"}:
        ranges = {}
        for log in chosen:
            end = len(logs[log])
            first, last = sorted(chance.randint(0, end) for _ in range(2))
            ranges[log] = (first if side == "offsets" else None, last)
        asked["offsets"] = ranges
        rows = [row for row in rows if (ranges[row.log][0] or 0) <= row.offset < ranges[row.log][1]]
    if side in {"times", "both"}:
        first, last = sorted(chance.choice(times) for _ in range(2))
        asked["times"] = (first, last if side == "times" else None)
        upper = last if side == "times" else 2**63
        rows = [row for row in rows if row.ms is not None and first <= row.ms < upper]
    options = read_options(*chosen, cluster=uri, **asked, **more)
    if chance.random() < 0.5:
        del options["asOf"]  # the load fixes it
    if chance.random() < 0.4:
        given = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING quire OPTIONS ({given})")
        return Part(spark.table(name), name, rows, options)
    reader = spark.read.format("quire").options(**options)
    if "includeHeaders" not in options and chance.random() < 0.4:
        reader = reader.schema(SCHEMA)
    frame = reader.load()
    frame.createOrReplaceTempView(name)
    return Part(frame, name, rows, options)


def answer(part, text=None):
    """A part's records, or those with a condition, as Spark reads them."""
    headers = ["headers"] if "includeHeaders" in part.options else []
    frame = part.frame if text is None else part.frame.where(text)
    return sorted(
        (
            row.log,
            row.offset,
            row.key and bytes(row.key),
            row.value and bytes(row.value),
            row.ms,
            *(
                [row.headers and tuple((h.key, h.value and bytes(h.value)) for h in row.headers)]
                if headers
                else []
            ),
        )
        for row in frame.selectExpr(*COLUMNS.split(", "), *headers).collect()
    )


def expected(part, holds=None):
    """The same by the client's records."""
    headers = "includeHeaders" in part.options
    return sorted(
        (*row.shown(), *([row.headers] if headers else []))
        for row in part.rows
        if holds is None or holds(row)
    )


def ask_all(chance, spark, parts):
    """Everything of one part."""
    part = chance.choice(parts)
    return "all", answer(part), expected(part)


def ask_some(chance, spark, parts):
    """What a condition leaves."""
    part = chance.choice(parts)
    text, holds = condition(chance, part.rows)
    return text, answer(part, text), expected(part, holds)


def ask_union(chance, spark, parts):
    """Two conditions, of one part or of two, one after the other."""
    both = [chance.choice(parts) for _ in range(2)]
    found, wanted, texts = None, [], []
    for part in both:
        text, holds = condition(chance, part.rows)
        frame = part.frame.where(text).selectExpr("log", "offset")
        found = frame if found is None else found.union(frame)
        wanted += [(row.log, row.offset) for row in part.rows if holds(row)]
        texts.append(text)
    return " + ".join(texts), sorted(map(tuple, found.collect())), sorted(wanted)


def ask_join(chance, spark, parts):
    """A part joined with itself, a condition on each side."""
    part = chance.choice(parts)
    (one, holds), (other, holds_too) = condition(chance, part.rows), condition(chance, part.rows)
    hint = chance.choice(["", "/*+ BROADCAST(b) */"])
    kind = chance.choice(["", "LEFT"])
    text = (
        f"SELECT {hint} a.log, a.offset, b.offset FROM (SELECT * FROM {part.name} WHERE {one}) a "
        f"{kind} JOIN (SELECT * FROM {part.name} WHERE {other}) b ON a.log = b.log AND a.offset = b.offset"
    )
    wanted = [
        (row.log, row.offset, row.offset if holds_too(row) else -1)
        for row in part.rows
        if holds(row) and (kind == "LEFT" or holds_too(row))
    ]
    found = [(log, offset, -1 if same is None else same) for log, offset, same in spark.sql(text).collect()]
    return text, sorted(found), sorted(wanted)


def ask_counts(chance, spark, parts):
    """Three scalar subqueries in one statement, about one part."""
    part = chance.choice(parts)
    asked = [condition(chance, part.rows) for _ in range(3)]
    queries = ", ".join(f"(SELECT count(*) FROM {part.name} WHERE {text})" for text, _ in asked)
    return (
        queries,
        list(spark.sql(f"SELECT {queries}").first()),
        [sum(map(bool, map(holds, part.rows))) for _, holds in asked],
    )


QUESTIONS = [ask_all, ask_some, ask_some, ask_union, ask_join, ask_counts]
