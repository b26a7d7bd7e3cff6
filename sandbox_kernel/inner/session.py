"""ipykernel's messages, none larger than the wrapper takes."""

from __future__ import annotations

from typing import Any

from jupyter_client.session import Session

# The wrapper hangs up on frames above 16 MiB, so an honest kernel does not send them.
MAX_FRAME_BYTES = 16 << 20
ERROR_CHARACTERS = 1 << 17


class BridgeSession(Session):
    """Refuses what the wrapper would refuse, where the user's code can see it."""

    def send(
        self, stream: Any, msg_or_type: Any, content: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        for buffer in kwargs.get("buffers") or ():
            check_size(memoryview(buffer).nbytes)
        if msg_or_type in ("error", "execute_reply") and "traceback" in (content or {}):
            content = {
                **content,
                "evalue": shortened(content["evalue"]),
                "traceback": [shortened(line) for line in content["traceback"]],
            }
        try:
            return super().send(stream, msg_or_type, content, *args, **kwargs)
        except ValueError as error:
            if not str(msg_or_type).endswith("_reply"):
                raise
            # No code of the user's would see it, and whoever has asked waits for an answer.
            return super().send(stream, msg_or_type, refused(error), *args, **kwargs)

    def serialize(self, *args: Any, **kwargs: Any) -> list[bytes]:
        frames: list[bytes] = super().serialize(*args, **kwargs)
        check_size(max(map(len, frames)))
        return frames


def refused(error: ValueError) -> dict[str, Any]:
    """The content of a reply that cannot be sent as it is."""
    evalue = shortened(str(error))
    return {
        "status": "error",
        "ename": "ValueError",
        "evalue": evalue,
        "traceback": [f"ValueError: {evalue}"],
    }


def shortened(text: str) -> str:
    """Without its middle if it is very long: an error must be seen, whatever it says."""
    if len(text) <= ERROR_CHARACTERS:
        return text
    half = ERROR_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]} … ({left_out:,} characters left out) … {text[-half:]}"


def check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        msg = (
            f"an output of {size >> 20} MiB is over the {MAX_FRAME_BYTES >> 20} MiB that one "
            "message of a sandboxed kernel may have: show less of it, or write it to a file"
        )
        raise ValueError(msg)
