"""Sockets that listen, and the connections that they accept."""

from __future__ import annotations

import asyncio
import socket

import pytest

from glassformer.serve.asgi import listening


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_connection_sends_small_pieces_at_once(host):
    """Nagle's algorithm and delayed acknowledgements together hold each small answer back by some
    40 ms."""
    try:
        bound = listening.listening_socket(host, 0, 8000)
    except ValueError:
        pytest.skip(f"{host} is no address here")

    async def accepted():
        options = asyncio.get_running_loop().create_future()

        class Reader(asyncio.Protocol):
            def connection_made(self, transport):
                sock = transport.get_extra_info("socket")
                options.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        server = await asyncio.get_running_loop().create_server(Reader, sock=bound)
        async with server:
            _, writer = await asyncio.open_connection(*bound.getsockname()[:2])
            try:
                return int(await asyncio.wait_for(options, 10))
            finally:
                writer.close()

    assert asyncio.run(accepted())
