"""Synchronous and asynchronous client of the service.

Their methods are made from the functions of :mod:`teal_serve.client.calls`, which build a request
and know how to decode its response.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from teal_serve.client import calls
from teal_serve.client.calls import Call, answer_of
from teal_serve.client.faults import NotReady, ServiceFault, Unauthorised, as_faults
from teal_serve.client.results import Network

# Interval at which wait_ready polls the state of a network.
_POLL_INTERVAL_S = 0.1
P = ParamSpec("P")
T = TypeVar("T")


def _sync_method(build_call: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """Turn a function that builds a call into a method of the synchronous client.

    The method builds the call, sends the request, and returns the decoded response.
    """

    # `wraps` copies the name and docstring of `build_call`.
    @functools.wraps(build_call)
    def method(self: Client, /, *arguments: P.args, **options: P.kwargs) -> T:
        call = build_call(*arguments, **options)
        with as_faults():
            response = self._http.request(
                call.method, call.path, timeout=self._timeout(call), **call.content
            )
        return answer_of(call, response)

    return method


def _async_method(
    build_call: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Turn a function that builds a call into a coroutine method of the asynchronous client.

    The method builds the call, sends the request, and returns the decoded response.
    """

    # `wraps` copies the name and docstring of `build_call`.
    @functools.wraps(build_call)
    async def method(self: AsyncClient, /, *arguments: P.args, **options: P.kwargs) -> T:
        call = build_call(*arguments, **options)
        with as_faults():
            response = await self._http.request(
                call.method, call.path, timeout=self._timeout(call), **call.content
            )
        return answer_of(call, response)

    return method


class Client:
    """Synchronous client of the service.

    Every method raises the subclass of ServiceFault that belongs to the error.

    Args:
        address: URL of the service, such as http://127.0.0.1:8000.
        token: bearer token; empty if the service requires none.
        timeout_s: timeout of a request, s, in addition to the deadline of an allocation.
        http: further arguments of httpx.Client, such as ``verify`` or ``transport``.

    Raises:
        ServiceFault: invalid address or token.
    """

    def __init__(self, address: str, token: str = "", timeout_s: float = 60.0, **http: Any) -> None:
        self._timeout = _timeouts(timeout_s)
        with as_faults():
            self._http = httpx.Client(**{**_connection_arguments(address, token), **http})

    networks = _sync_method(calls.networks)
    put_network = _sync_method(calls.put_network)
    network = _sync_method(calls.network)
    delete_network = _sync_method(calls.delete_network)
    change_link = _sync_method(calls.change_link)
    change_links = _sync_method(calls.change_links)
    paths = _sync_method(calls.paths)
    allocate = _sync_method(calls.allocate)
    allocation = _sync_method(calls.allocation)
    proof = _sync_method(calls.proof)
    measure = _sync_method(calls.measure)
    measure_counters = _sync_method(calls.measure_counters)
    measured = _sync_method(calls.measured)
    forget_measured = _sync_method(calls.forget_measured)
    model = _sync_method(calls.model)
    allocate_next = _sync_method(calls.allocate_next)

    def wait_ready(self, name: str, timeout_s: float = 600.0) -> Network:
        """Wait until the paths of a network are computed; return its state, nodes and links.

        Args:
            name: name of the network.
            timeout_s: longest time to wait, s.

        Raises:
            NotReady: the paths are not computed after ``timeout_s``.
            ServiceFault: the paths cannot be computed.
        """
        end_s = time.monotonic() + timeout_s
        while not _is_ready(network := self.network(name), end_s):
            time.sleep(_POLL_INTERVAL_S)
        return network

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """Asynchronous client of the service; methods as in :class:`Client`, as coroutines.

    Args:
        address: URL of the service, such as http://127.0.0.1:8000.
        token: bearer token; empty if the service requires none.
        timeout_s: timeout of a request, s, in addition to the deadline of an allocation.
        http: further arguments of httpx.AsyncClient, such as ``verify`` or ``transport``.

    Raises:
        ServiceFault: invalid address or token.
    """

    def __init__(self, address: str, token: str = "", timeout_s: float = 60.0, **http: Any) -> None:
        self._timeout = _timeouts(timeout_s)
        with as_faults():
            self._http = httpx.AsyncClient(**{**_connection_arguments(address, token), **http})

    networks = _async_method(calls.networks)
    put_network = _async_method(calls.put_network)
    network = _async_method(calls.network)
    delete_network = _async_method(calls.delete_network)
    change_link = _async_method(calls.change_link)
    change_links = _async_method(calls.change_links)
    paths = _async_method(calls.paths)
    allocate = _async_method(calls.allocate)
    allocation = _async_method(calls.allocation)
    proof = _async_method(calls.proof)
    measure = _async_method(calls.measure)
    measure_counters = _async_method(calls.measure_counters)
    measured = _async_method(calls.measured)
    forget_measured = _async_method(calls.forget_measured)
    model = _async_method(calls.model)
    allocate_next = _async_method(calls.allocate_next)

    async def wait_ready(self, name: str, timeout_s: float = 600.0) -> Network:
        """Wait until the paths of a network are computed; return its state, nodes and links.

        Args:
            name: name of the network.
            timeout_s: longest time to wait, s.

        Raises:
            NotReady: the paths are not computed after ``timeout_s``.
            ServiceFault: the paths cannot be computed.
        """
        end_s = time.monotonic() + timeout_s
        while not _is_ready(network := await self.network(name), end_s):
            await asyncio.sleep(_POLL_INTERVAL_S)
        return network

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _timeouts(timeout_s: float) -> Callable[[Call[Any]], float]:
    """Return the function from a call to its HTTP timeout, s: the call's deadline + ``timeout_s``.

    ``timeout_s`` covers queue, transfer, and a path search after a restart of the service.
    """
    return lambda call: call.deadline_s + timeout_s


def _connection_arguments(address: str, token: str) -> dict[str, Any]:
    """Return the arguments of httpx's clients: URL, authorisation header, use of proxies.

    Requests to loopback addresses bypass the proxies of the environment variables.

    Args:
        address: URL of the service.
        token: bearer token; "" for none.

    Raises:
        Unauthorised: the token has characters that a header cannot contain.
    """
    if not (token.isascii() and all(char.isprintable() and char != " " for char in token)):
        raise Unauthorised(
            0,
            "unauthorised",
            "invalid token: only visible ASCII characters without spaces are allowed",
        )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # With trust_env, httpx uses the proxies of the environment; a loopback address needs none.
    return {
        "base_url": address,
        "headers": headers,
        "trust_env": not _is_loopback(httpx.URL(address).host),
    }


def _is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or name, which stands for this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_ready(network: Network, end_s: float) -> bool:
    """Return whether the paths of a network are computed; raise an error if they cannot be in time.

    Args:
        network: current state of the network.
        end_s: time limit of the wait, by ``time.monotonic()``.

    Raises:
        ServiceFault: the computation of the paths failed.
        NotReady: the paths are not computed, and the time limit has passed.
    """
    if network.state == "failed":
        raise ServiceFault(409, "failed", network.error or "")
    if network.state != "ready" and time.monotonic() > end_s:
        raise NotReady(
            503,
            "not_ready",
            f"network {network.name} is still {network.state} at the end of the timeout; wait "
            "longer",
        )
    return network.state == "ready"
