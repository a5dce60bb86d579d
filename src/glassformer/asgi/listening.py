"""A socket on a host and a port, or a sentence that says what is wrong with them."""

from __future__ import annotations

import socket

from ..errors import UserError


def bound(host: str, port: int, usual: int) -> socket.socket:
    """A socket that listens; UserError for a port that another program has, with the next that is
    free."""
    try:
        return _listen(host, port)
    except PermissionError:
        raise UserError(
            f"Port {port} is for the system's own; take one above 1023, such as --port {usual}."
        ) from None
    except OSError as error:
        if isinstance(error, socket.gaierror) or not _in_use(error):
            raise UserError(
                f"--host {host} is no address of this machine ({error.strerror}); leave it out."
            ) from None
    for other in range(port + 1, min(port + 200, 65_536)):
        try:
            _listen(host, other).close()
        except OSError:
            continue
        raise UserError(f"Port {port} is in use; port {other} is free: --port {other}.")
    raise UserError(
        f"Port {port} is in use, and so are those after it; --port 0 takes any free one."
    )


def _in_use(error: OSError) -> bool:
    import errno

    return error.errno == errno.EADDRINUSE


def _listen(host: str, port: int) -> socket.socket:
    flags = socket.AI_PASSIVE
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=flags
    )[0]
    # asyncio sets TCP_NODELAY only where the protocol is named
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made
