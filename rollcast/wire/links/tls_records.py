"""Counts TLS 1.3 records as their bytes come (RFC 8446 section 5). Pure: no decryption, no I/O.

The lengths of records are not encrypted. Whoever waits for a number of plaintext bytes can tell from them how many
bytes the socket must deliver at the least: waking for fewer is of no use.
"""

from __future__ import annotations

_HEADER_BYTES = 5  # type, version, length
_OVERHEAD_BYTES = 17  # content type and tag, which count in the record's length
_PLAINTEXT_BYTES_MAX = 16 << 10


class TlsRecords:
    """Position in one direction of a connection; begins at the border of a record."""

    def __init__(self) -> None:
        self._header = bytearray()  # of the next record, where it came in part
        self._length = 0  # of the current record, without its header
        self._left = 0  # of it, still to come

    def feed(self, data: memoryview) -> None:
        """Note the next bytes that came."""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
            elif not self._header and size - at >= _HEADER_BYTES:
                self._length = self._left = data[at + 3] << 8 | data[at + 4]
                at += _HEADER_BYTES
            else:
                taken = data[at : at + _HEADER_BYTES - len(self._header)]
                self._header += taken
                at += len(taken)
                if len(self._header) == _HEADER_BYTES:
                    self._length = self._left = self._header[3] << 8 | self._header[4]
                    self._header.clear()

    def bytes_to_come(self, plaintext_bytes: int) -> int:
        """Bytes that must still come, at the least, before so many bytes of plaintext not yet decrypted are complete.

        At least 1: within a record, nothing can be decrypted before the record is complete.
        """
        if self._left:
            beyond = plaintext_bytes - max(0, self._length - _OVERHEAD_BYTES)
            return self._left + _encrypted(max(0, beyond))
        return max(1, _encrypted(plaintext_bytes) - len(self._header))


def _encrypted(plaintext_bytes: int) -> int:
    records = -(-plaintext_bytes // _PLAINTEXT_BYTES_MAX)
    return plaintext_bytes + records * (_HEADER_BYTES + _OVERHEAD_BYTES)
