"""The text of what users bring: plain or gzip, in any state."""

import gzip
import zlib


def decode_text(data: bytes, label: str) -> str:
    """The text of a file's bytes, plain or gzip, without a byte order mark; what is not UTF-8 becomes U+FFFD, which
    readers refuse by its position.

    Args:
        label: names the file in an error.

    Raises:
        ValueError: for damaged gzip data.
    """
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error):
            raise ValueError(f"{label} is damaged or was cut: its gzip data can't be read to the end") from None
    return data.decode("utf-8-sig", errors="replace")
