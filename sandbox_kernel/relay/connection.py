"""The frontend's connection file. Free of zmq: the sandbox starts before that import is paid for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox_kernel.relay.wire import Signer

CHANNELS: Final = ("shell", "iopub", "stdin", "control", "hb")


class ConnectionFileError(Exception):
    """The connection file cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """What the frontend's connection file says."""

    transport: str
    ip: str
    ports: dict[str, int]
    signer: Signer
    curve_publickey: bytes | None = None
    curve_secretkey: bytes | None = None

    @classmethod
    def load(cls, path: Path) -> ConnectionInfo:
        try:
            info = json.loads(path.read_bytes())
        except OSError as error:
            msg = f"cannot read the connection file {path}: {error.strerror}"
            raise ConnectionFileError(msg) from None
        except ValueError:
            msg = f"the connection file {path} is not JSON"
            raise ConnectionFileError(msg) from None
        try:
            return cls._from_object(info)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            msg = f"the connection file {path} is malformed: {reason}"
            raise ConnectionFileError(msg) from None

    @classmethod
    def _from_object(cls, info: Any) -> ConnectionInfo:
        if not isinstance(info, dict):
            msg = "it does not hold a JSON object"
            raise TypeError(msg)
        if info["transport"] not in ("tcp", "ipc"):
            msg = f"transport {info['transport']!r} is neither tcp nor ipc"
            raise ValueError(msg)
        ports = {channel: info[f"{channel}_port"] for channel in CHANNELS}
        for channel, port in ports.items():
            if type(port) is not int or not 0 < port < 65536:
                msg = f"{channel}_port {port!r} is not a port number"
                raise ValueError(msg)
        key, scheme = info["key"], info.get("signature_scheme", "hmac-sha256")
        public, secret = info.get("curve_publickey"), info.get("curve_secretkey")
        texts = {"ip": info["ip"], "key": key, "signature_scheme": scheme}
        if (public is None) != (secret is None):
            msg = "it has one of curve_publickey and curve_secretkey; both are needed"
            raise ValueError(msg)
        if public is not None:
            texts |= {"curve_publickey": public, "curve_secretkey": secret}
        for name, text in texts.items():
            if not isinstance(text, str):
                msg = f"{name} is not a string"
                raise TypeError(msg)
        return cls(
            transport=info["transport"],
            ip=info["ip"],
            ports=ports,
            signer=Signer.from_scheme(key.encode(), scheme),
            curve_publickey=None if public is None else public.encode(),
            curve_secretkey=None if secret is None else secret.encode(),
        )

    def endpoint(self, channel: str) -> str:
        if self.transport == "ipc":
            return f"ipc://{self.ip}-{self.ports[channel]}"
        return f"tcp://{self.ip}:{self.ports[channel]}"
