r"""SR policies into BGP: a GoBGP speaker is made to hold those of a file, which its neighbours then
receive.

    teal segments ... --out lists.json
    teal export --policies lists.json --topology ... --routers routers.csv \
        --out policies.sr-policy.json
    python -m deploy.sr_policies policies.sr-policy.json [--speaker 127.0.0.1:50051] [--next-hop 10.0.0.1]

Each policy becomes a route of SAFI 73 (RFC 9830) with its preference and its weighted lists of MPLS
labels; a route target names the headend's loopback, which is its BGP identifier and, as a number,
the distinguisher of the route. Routes that the file changes are replaced in one step, without a
withdrawal; those that it no longer has are withdrawn; routes of other colours are left alone.
Needs grpcio and protobuf, which ``pip install '.[serve]'`` brings.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

AFI_IP = 1
AFI_IP6 = 2
SAFI_SR_POLICY = 73
# Names of GoBGP 3.
_PACKAGE = "apipb"
_SERVICE = "/apipb.GobgpApi/"
# Types of RFC 9830 and RFC 4360.
_TUNNEL_SR_POLICY = 15
_ROUTE_TARGET = 2
_BITS_BELOW_LABEL = 12  # of an entry of a label stack
_TIMEOUT_S = 10.0

# The part of GoBGP's interface that is used: fields by name, with their number and type; [...] for
# repeated ones.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Family": {"afi": (1, "int32"), "safi": (2, "int32")},
    "SRPolicyNLRI": {
        "length": (1, "uint32"),
        "distinguisher": (2, "uint32"),
        "color": (3, "uint32"),
        "endpoint": (4, "bytes"),
    },
    "OriginAttribute": {"origin": (1, "uint32")},
    "NextHopAttribute": {"next_hop": (1, "string")},
    "ExtendedCommunitiesAttribute": {"communities": (1, "[Any]")},
    "IPv4AddressSpecificExtended": {
        "is_transitive": (1, "bool"),
        "sub_type": (2, "uint32"),
        "address": (3, "string"),
        "local_admin": (4, "uint32"),
    },
    "TunnelEncapAttribute": {"tlvs": (1, "[TunnelEncapTLV]")},
    "TunnelEncapTLV": {"type": (1, "uint32"), "tlvs": (2, "[Any]")},
    "TunnelEncapSubTLVSRPreference": {"flags": (1, "uint32"), "preference": (2, "uint32")},
    "TunnelEncapSubTLVSRSegmentList": {"weight": (1, "SRWeight"), "segments": (2, "[Any]")},
    "SRWeight": {"flags": (1, "uint32"), "weight": (2, "uint32")},
    "SegmentTypeA": {"flags": (1, "SegmentFlags"), "label": (2, "uint32")},
    "SegmentFlags": {
        "v_flag": (1, "bool"),
        "a_flag": (2, "bool"),
        "s_flag": (3, "bool"),
        "b_flag": (4, "bool"),
    },
    "Path": {
        "nlri": (1, "Any"),
        "pattrs": (2, "[Any]"),
        "family": (9, "Family"),
        "pattrs_binary": (21, "[bytes]"),
    },
    "AddPathRequest": {"table_type": (1, "int32"), "path": (3, "Path")},
    "AddPathResponse": {"uuid": (1, "bytes")},
    "DeletePathRequest": {"table_type": (1, "int32"), "family": (3, "Family"), "path": (4, "Path")},
    "Empty": {},
    "ListPathRequest": {
        "table_type": (1, "int32"),
        "family": (3, "Family"),
        "enable_attribute_binary": (8, "bool"),
    },
    "Destination": {"prefix": (1, "string"), "paths": (2, "[Path]")},
    "ListPathResponse": {"destination": (1, "Destination")},
}


def _classes() -> dict[str, Any]:
    """A class for each message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="gobgp_part.proto", package=_PACKAGE, syntax="proto3"
    )
    file.dependency.append("google/protobuf/any.proto")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = message.field.add(name=field, number=number)
            one.label = kinds.LABEL_REPEATED if kind.startswith("[") else kinds.LABEL_OPTIONAL
            bare = kind.strip("[]")
            if bare in _MESSAGES or bare == "Any":
                one.type = kinds.TYPE_MESSAGE
                one.type_name = ".google.protobuf.Any" if bare == "Any" else f".{_PACKAGE}.{bare}"
            else:
                one.type = getattr(kinds, f"TYPE_{bare.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASS = _classes()


def _any(name: str, **fields: Any) -> dict[str, Any]:
    """A message in an Any, as GoBGP packs them."""
    value = _CLASS[name](**fields).SerializeToString()
    return {"type_url": f"type.googleapis.com/{_PACKAGE}.{name}", "value": value}


class Key(NamedTuple):
    """What tells routes apart.

    Attributes:
        distinguisher: address of the headend as a number.
        colour: colour of the policy.
        endpoint: address.
    """

    distinguisher: int
    colour: int
    endpoint: str


class Route(NamedTuple):
    """A route of SAFI 73.

    Attributes:
        key: its key.
        headend: address of the router that it is for.
        preference: of its candidate path.
        lists: weight and labels of each segment list.
        path: the message of GoBGP.
    """

    key: Key
    headend: str
    preference: int
    lists: tuple[tuple[int, tuple[int, ...]], ...]
    path: Any


def _unpacked(part: Any) -> tuple[str, Any]:
    """Name and content of a message in an Any; None for a message that this file does not know."""
    name = part.type_url.rpartition(".")[2]
    return name, _CLASS[name].FromString(part.value) if name in _CLASS else None


def read(path: Any) -> Route:
    """The route in a message of GoBGP."""
    nlri = _CLASS["SRPolicyNLRI"].FromString(path.nlri.value)
    key = Key(nlri.distinguisher, nlri.color, str(ipaddress.ip_address(nlri.endpoint)))
    attributes = dict(map(_unpacked, path.pattrs))
    headend = ""
    preference = 0
    lists = []
    for name, one in map(_unpacked, attributes["ExtendedCommunitiesAttribute"].communities):
        headend = one.address if name == "IPv4AddressSpecificExtended" else headend
    for name, one in (
        _unpacked(part) for tlv in attributes["TunnelEncapAttribute"].tlvs for part in tlv.tlvs
    ):
        preference = one.preference if name == "TunnelEncapSubTLVSRPreference" else preference
        if name == "TunnelEncapSubTLVSRSegmentList":
            lists.append(
                (
                    one.weight.weight,
                    tuple(_unpacked(part)[1].label >> _BITS_BELOW_LABEL for part in one.segments),
                )
            )
    return Route(key, headend, preference, tuple(lists), path)


def _nlri(key: Key) -> dict[str, Any]:
    """What names a route; GoBGP crashes on the length that its own table shows, in bytes."""
    packed = ipaddress.ip_address(key.endpoint).packed
    return _any(
        "SRPolicyNLRI",
        length=8 * (8 + len(packed)),
        distinguisher=key.distinguisher,
        color=key.colour,
        endpoint=packed,
    )


def _family(endpoint: str) -> dict[str, int]:
    return {"afi": AFI_IP6 if ":" in endpoint else AFI_IP, "safi": SAFI_SR_POLICY}


def routes(document: dict[str, Any], next_hop: str) -> list[Route]:
    """The routes of a file of SR policies, as
    ``teal export --policies ... --out FILE.json`` writes it.

    Args:
        document: the file.
        next_hop: address that BGP takes for the next hop.

    Raises:
        ValueError: a transit policy, a policy without the addresses of headend and endpoint, or a
            headend whose address is not IPv4.
    """
    result = []
    for one in document["sr-policies"]:
        if "steers" in one:
            raise ValueError(
                f"{one['headend']} to {one['endpoint']}: a transit policy, which BGP cannot say"
            )
        if not one.get("endpoint-address") or not one.get("headend-address"):
            raise ValueError(
                f"{one['headend']} to {one['endpoint']}: no address; give --routers to teal solve"
            )
        endpoint = str(ipaddress.ip_address(one["endpoint-address"]))
        key = Key(int(ipaddress.IPv4Address(one["headend-address"])), one["colour"], endpoint)
        (candidate,) = one["candidate-paths"]
        tlvs = [_any("TunnelEncapSubTLVSRPreference", preference=candidate["preference"])]
        for each in candidate["segment-lists"]:
            # GoBGP crashes without flags; its label is a whole entry of the stack, with class, end
            # mark and TTL below.
            segments = [
                _any(
                    "SegmentTypeA",
                    flags=_CLASS["SegmentFlags"](),
                    label=part["label"] << _BITS_BELOW_LABEL,
                )
                for part in each["segments"]
            ]
            tlvs.append(
                _any(
                    "TunnelEncapSubTLVSRSegmentList",
                    weight={"weight": each["weight"]},
                    segments=segments,
                )
            )
        target = _any(
            "IPv4AddressSpecificExtended",
            is_transitive=True,
            sub_type=_ROUTE_TARGET,
            address=one["headend-address"],
        )
        attributes = [
            _any("OriginAttribute"),
            _any("NextHopAttribute", next_hop=next_hop),
            _any("ExtendedCommunitiesAttribute", communities=[target]),
            _any("TunnelEncapAttribute", tlvs=[{"type": _TUNNEL_SR_POLICY, "tlvs": tlvs}]),
        ]
        result.append(
            read(_CLASS["Path"](nlri=_nlri(key), pattrs=attributes, family=_family(key.endpoint)))
        )
    return result


class Speaker:
    """A GoBGP daemon's interface.

    Args:
        address: host and port of its gRPC interface.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _call(self, name: str, answer: str, request: Any) -> Any:
        method = self._channel.unary_unary(
            _SERVICE + name,
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=_CLASS[answer].FromString,
        )
        return method(request, timeout=_TIMEOUT_S)

    def routes(self, afi: int = AFI_IP) -> Iterator[Route]:
        """The SR policies in the table."""
        method = self._channel.unary_stream(
            f"{_SERVICE}ListPath",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=_CLASS["ListPathResponse"].FromString,
        )
        family = {"afi": afi, "safi": SAFI_SR_POLICY}
        for answer in method(_CLASS["ListPathRequest"](family=family), timeout=_TIMEOUT_S):
            yield from map(read, answer.destination.paths)

    def add(self, route: Route) -> None:
        """Add a route, or replace the one of its key."""
        self._call("AddPath", "AddPathResponse", _CLASS["AddPathRequest"](path=route.path))

    def withdraw(self, route: Route) -> None:
        """Withdraw a route."""
        path = _CLASS["Path"](
            nlri=_nlri(route.key),
            pattrs=[_any("OriginAttribute"), _any("NextHopAttribute", next_hop="0.0.0.0")],
            family=_family(route.key.endpoint),
        )
        self._call(
            "DeletePath",
            "Empty",
            _CLASS["DeletePathRequest"](path=path, family=_family(route.key.endpoint)),
        )

    def hold(self, wanted: list[Route], colour: int) -> tuple[int, int, int]:
        """Make the table hold these routes of a colour, and no others; numbers of those added,
        replaced, withdrawn.
        """
        present = {
            one.key: one
            for afi in (AFI_IP, AFI_IP6)
            for one in self.routes(afi)
            if one.key.colour == colour
        }
        keys = {one.key for one in wanted}
        added = [one for one in wanted if one.key not in present]
        changed = [
            one for one in wanted if one.key in present and one[:-1] != present[one.key][:-1]
        ]
        gone = [one for key, one in present.items() if key not in keys]
        for one in (*added, *changed):
            self.add(one)
        for one in gone:
            self.withdraw(one)
        return len(added), len(changed), len(gone)


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.sr_policies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", type=Path, help="SR policies: what teal export --policies ... --out FILE.json wrote"
    )
    parser.add_argument(
        "--speaker", default="127.0.0.1:50051", help="gRPC interface of gobgpd (127.0.0.1:50051)"
    )
    parser.add_argument(
        "--colour", type=int, default=100, help="colour whose routes the file is all of (100)"
    )
    parser.add_argument(
        "--next-hop", default="127.0.0.1", help="next hop of the routes (127.0.0.1)"
    )
    options = parser.parse_args(arguments)
    speaker = Speaker(options.speaker)
    try:
        wanted = routes(json.loads(options.file.read_text(encoding="utf-8")), options.next_hop)
        if other := {one.key.colour for one in wanted} - {options.colour}:
            raise ValueError(f"policies of colour {min(other)}; --colour {min(other)}?")
        added, changed, gone = speaker.hold(wanted, options.colour)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"sr_policies: {options.file}: {error}\n")
        return 1
    except grpc.RpcError as error:
        sys.stderr.write(f"sr_policies: {options.speaker}: {error.details()}\n")
        return 1
    finally:
        speaker.close()
    sys.stdout.write(f"{added} added, {changed} replaced, {gone} withdrawn\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
