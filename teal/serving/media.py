"""The media types of bodies."""

ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
