"""Requests of these tests have ten minutes unless a test says otherwise: none may depend on how
busy the machine is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal_serve.engine.requests import AllocationRequest, MeasurementRequest, Options

_PATIENT_MS = 600_000.0
_MODELS = Options, AllocationRequest, MeasurementRequest


@pytest.fixture(autouse=True, scope="session")
def _patient_requests() -> Iterator[None]:
    """Of the services in this process."""
    fields = [model.model_fields["deadline_ms"] for model in _MODELS]
    usual = [field.default for field in fields]
    for field, default in zip(fields, [_PATIENT_MS] * len(fields), strict=True):
        field.default = default
    for model in _MODELS:
        model.model_rebuild(force=True)
    yield
    for field, default in zip(fields, usual, strict=True):
        field.default = default
    for model in _MODELS:
        model.model_rebuild(force=True)
