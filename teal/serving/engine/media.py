"""The media types of bodies."""

ARROW, JSON, ZIP = "application/vnd.apache.arrow.stream", "application/json", "application/zip"


def media_type(header: str) -> str:
    """The type in a Content-Type header, without parameters; "" where there is none."""
    return header.partition(";")[0].strip().lower()
