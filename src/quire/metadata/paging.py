"""All keys with a prefix, page by page; callers see one sequence."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from quire.metadata.store import LIST_LIMIT, MetadataStore, Versioned


async def every_key(store: MetadataStore, prefix: str) -> AsyncGenerator[tuple[str, Versioned], None]:
    """Each key that begins with a prefix, ascending, with its value. Each page is of one moment, all together are not."""
    after: str | None = None
    while True:
        page = await store.list(prefix, after=after, limit=LIST_LIMIT)
        for found in page:
            yield found
        if len(page) < LIST_LIMIT:
            return
        after = page[-1][0]
