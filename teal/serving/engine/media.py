"""The media types of bodies."""

ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"


def media_type(header: str) -> str:
    """The type in a Content-Type header, without parameters; "" where there is none."""
    return header.partition(";")[0].strip().lower()
