"""Files that fail one sync, and files that leave one kind of sync out: what the crash images must notice."""

from __future__ import annotations

import errno

SEGMENT_MAGIC, GROUP_MAGIC, FOOTER_MAGIC = b"\xd1QSEG", b"\xd1QGRP", b"\xd1QFOO"


class Passing:
    """Everything goes to the files below."""

    def __init__(self, files):
        self.below = files

    def __getattr__(self, name):
        return getattr(self.below, name)


class FailingFiles(Passing):
    """The so many-th sync fails, and only that one: the next would succeed, as on a real machine."""

    def __init__(self, files, position):
        super().__init__(files)
        self.left = position
        self.failed = lambda: None

    def syncing(self, path):
        self.left -= 1
        if self.left == 0:
            self.failed()
            raise OSError(errno.EIO, "injected", str(path))

    def open_to_write(self, path, *, direct):
        return _FailingFile(self.below.open_to_write(path, direct=direct), self, path, direct)

    def write_whole(self, path, data):
        self.syncing(path)
        self.below.write_whole(path, data)

    def allocate(self, path, size):
        self.syncing(path)
        self.below.allocate(path, size)

    def sync_directory(self, directory):
        self.syncing(directory)
        self.below.sync_directory(directory)


class _FailingFile(Passing):
    def __init__(self, file, files, path, direct):
        super().__init__(file)
        self._files, self._path, self._direct = files, path, direct

    def write_at(self, data, offset):
        if self._direct:
            self._files.syncing(self._path)
        self.below.write_at(data, offset)

    def sync(self):
        if not self._direct:
            self._files.syncing(self._path)
        self.below.sync()


class ForgetfulFiles(Passing):
    """Leaves out one kind of sync; everybody is told that it was done.

    Kinds: "header", "group", "footer" (the write that a file's sync follows), "before the start" (of a file that was not
    written to), "opened", "recycled" (the rename that a directory's sync follows), "names found" (at a start), "cookie".
    """

    def __init__(self, files, kind):
        super().__init__(files)
        self.kind = kind
        self.left_out = 0
        self.last_name = "names found"

    def leaves_out(self, kind):
        if kind == self.kind:
            self.left_out += 1
            return True
        return False

    def lock(self, path):
        self.last_name = "names found"
        return self.below.lock(path)

    def open_to_write(self, path, *, direct):
        return _ForgetfulFile(self.below.open_to_write(path, direct=direct and self.kind != "group"), self)

    def rename(self, old, new):
        self.below.rename(old, new)
        self.last_name = {".seg": "opened", ".used": "recycled"}.get(new.suffix, "spare")

    def sync_directory(self, directory):
        if not self.leaves_out(self.last_name):
            self.below.sync_directory(directory)
        self.last_name = ""

    def write_whole(self, path, data):
        if not self.leaves_out("cookie"):
            self.below.write_whole(path, data)
            return
        file = self.below.create(path)
        file.write_at(data, 0)
        file.close()


class _ForgetfulFile(Passing):
    def __init__(self, file, files):
        super().__init__(file)
        self._files = files
        self._last = "before the start"

    def write_at(self, data, offset):
        head = bytes(data[:5])
        kinds = {SEGMENT_MAGIC: "header", GROUP_MAGIC: "group", FOOTER_MAGIC: "trailer"}
        self._last = kinds.get(head, "footer" if any(data[:16]) else "blank")
        self.below.write_at(data, offset)

    def sync(self):
        if not self._files.leaves_out(self._last):
            self.below.sync()
