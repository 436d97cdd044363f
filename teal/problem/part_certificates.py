"""Certificates of an objective that is a sequence of programs, one for each priority class or fair
level; each is printed as a certificate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from torch import Tensor

from teal.runtime.rounding import at_most, gap_text


@dataclasses.dataclass(frozen=True)
class PartCertificate:
    """Certificate of a part of the demands of one matrix: a priority class or a fair level.

    Attributes:
        name: name of the part.
        demand: sum of its demands, Gbit/s.
        value: carried flow, Gbit/s.
        bound: certified bound on the value, given the values of earlier parts, Gbit/s.
        gap: (bound - value) / bound, at least 0.
        more: further metrics, by name.  A metric that is named as the kind of part, such as
            "level", replaces ``name`` in files.
    """

    name: str
    demand: float
    value: float
    bound: float
    gap: float
    more: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def record(self, part_kind: str) -> dict[str, Any]:
        """Return the name and all metrics by their keys in files and responses, with None for
        infinite ones.

        Args:
            part_kind: key of the name of the part, such as ``class``.
        """
        satisfied = self.value / self.demand if self.demand > 0 else 1.0
        metrics = {"demand": self.demand, "value": self.value, "bound": self.bound, "gap": self.gap}
        metrics = {**metrics, "satisfied_demand": satisfied, **self.more}
        return {
            part_kind: self.name,
            **{name: metric if math.isfinite(metric) else None for name, metric in metrics.items()},
        }

    def text(self, part_kind: str, width: int = 0) -> str:
        """Return the certificate as a line of text: name, flow, bound, gap and further metrics.

        Args:
            part_kind: kind of the part, such as ``class``.
            width: minimum width of the name.
        """
        flow_text = (
            f"{self.value:.6g} of {self.demand:.6g} Gbit/s, bound {at_most(self.bound)}, gap "
            f"{gap_text(self.gap)}"
        )
        more_texts = [
            f"{name} {_plain(metric)}" for name, metric in self.more.items() if name != part_kind
        ]
        return ", ".join([f"{self.name:{width}}  {flow_text}", *more_texts])


def _plain(metric: float) -> str:
    """Return a metric as text; an infinite one, a growth without a bound, as "without a bound"."""
    if math.isinf(metric):
        return "without a bound"
    return f"{metric:,}" if isinstance(metric, int) else f"{metric:.6g}"


@runtime_checkable
class PartCertificates(Protocol):
    """Certificates of the parts of the demands, classes or levels, in each of B matrices.

    Attributes:
        part_kind: kind of the parts, such as ``class``.
        parts_key: plural of the kind, which is the key in files and responses.
    """

    part_kind: ClassVar[str]
    parts_key: ClassVar[str]

    def rows(self, rows: Tensor) -> Self:
        """Return the certificates of some of the matrices, by their indices (n,)."""
        ...

    def of_matrix(self, row: int) -> tuple[PartCertificate, ...]:
        """Return the certificate of each part of one matrix, given by its index."""
        ...

    def counts(self, row: int) -> dict[str, int]:
        """Return counts of demands of one matrix, by their names in files; {} for none."""
        ...

    def headline(self, row: int) -> str:
        """Return a sentence about one matrix that is printed above its certificates; ""
        for none.
        """
        ...


def records(certificates: PartCertificates, row: int) -> list[dict[str, Any]]:
    """Return the certificates of one matrix as records, by the keys of files and responses."""
    return [
        certificate.record(certificates.part_kind) for certificate in certificates.of_matrix(row)
    ]


def texts(certificates: PartCertificates, row: int) -> list[str]:
    """Return the headline of one matrix, if any, and its certificates as lines of text."""
    row_certificates = certificates.of_matrix(row)
    headline = certificates.headline(row)
    width = max((len(certificate.name) for certificate in row_certificates), default=0)
    return [
        *([headline] if headline else []),
        *(
            f"  {certificate.text(certificates.part_kind, width)}"
            for certificate in row_certificates
        ),
    ]
