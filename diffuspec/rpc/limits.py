"""The limits on calls, the same on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Options: TypeAlias = Sequence[tuple[str, int | str]]


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """What a client and a server allow each other. Both sides of a connection must agree."""

    max_message_bytes: int = 16 * 1024 * 1024
    max_calls_per_method: int = 256  # open calls and streams of one server, excluding health checks
    max_calls_in_flight: int = 16  # concurrent calls on one stream
    max_prefixes: int = 1024  # prefixes that one stream holds, or one message releases
    max_id_length: int = 1024  # length of a request id
    max_key_name_length: int = 128  # length of the name of an API key
    max_prefix_tokens: int = 4 * 1024 * 1024  # tokens of the prefixes that one stream holds
    max_prompt_tokens: int = 1024 * 1024  # tokens of a request, including its answer so far
    max_chat_messages: int = 4096  # messages in a request
    max_unread_outputs: int = 64  # outputs of a request, beyond those that the network holds
    max_step_seconds: float = 60.0  # a role that works on one step for longer is unhealthy
    max_stall_seconds: float = 30.0  # time for a client to send its request, or to take a message
    max_idle_seconds: float = 300.0  # time that a stream may be without messages and running steps
    keepalive_seconds: float = 30.0
    keepalive_timeout_seconds: float = 10.0
    connect_seconds: float = 5.0  # time for one attempt to connect, including the TLS handshake
    max_reconnect_seconds: float = 1.0  # pause between attempts to reach a lost server
    grace_seconds: float = 2.0  # time for running steps when a server stops

    def channel_options(self) -> Options:
        return [
            *self._message_options(),
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", _milliseconds(self.keepalive_timeout_seconds)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # Despite its name this limits a single attempt; a handshake takes long on a busy
            # machine.
            ("grpc.min_reconnect_backoff_ms", _milliseconds(self.connect_seconds)),
            ("grpc.max_reconnect_backoff_ms", _milliseconds(self.max_reconnect_seconds)),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),  # roles are never behind a proxy from the environment
            ("grpc.use_local_subchannel_pool", 1),  # clients do not share connections
        ]

    def server_options(self) -> Options:
        """Accept pings up to twice as often as a client with the same limits sends them."""
        interval = _milliseconds(self.keepalive_seconds / 2)
        return [
            *self._message_options(),
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", _milliseconds(self.keepalive_timeout_seconds)),
            ("grpc.http2.min_ping_interval_without_data_ms", interval),
            # a port in use is an error, rather than shared by a second server
            ("grpc.so_reuseport", 0),
        ]

    def _message_options(self) -> Options:
        return [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),  # no limit; gRPC's default is two in a row
            # A stream's window stays at 64 KiB, without pings that probe for a larger one: a server
            # must stop soon when a client does not read.
            ("grpc.http2.bdp_probe", 0),
        ]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


DEFAULT_LIMITS = RpcLimits()
