"""Listening sockets, with readable errors for host and port."""

from __future__ import annotations

import errno
import socket

from ...core.errors import UserError, need


def listening_socket(host: str, port: int, default_port: int) -> socket.socket:
    """Opens a listening socket. Raises UserError for a port in use, with one that is free."""
    try:
        return _listen(host, port)
    except PermissionError:
        raise UserError(
            f"Port {port} is reserved for the system; give one above 1023, such as --port "
            f"{default_port}."
        ) from None
    except OSError as error:
        need(
            error.errno == errno.EADDRINUSE,
            f"--host {host} is no address of this machine ({error.strerror}); leave it out.",
        )
    with _listen(host, 0) as listener:
        free_port = listener.getsockname()[1]
    raise UserError(f"Port {port} is in use; port {free_port} is free: --port {free_port}.")


def _listen(host: str, port: int) -> socket.socket:
    flags = socket.AI_PASSIVE
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=flags
    )[0]
    # asyncio sets TCP_NODELAY only where the protocol is named
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
