"""Compile a seccomp profile in Docker's JSON format to the BPF program that bubblewrap loads.

The binding to libseccomp is written here because it is eight C functions: PyPI's wrapper finds
the library by running ``ldconfig`` and a C compiler, which costs more than the whole compilation.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, NoReturn

_ALLOW, _ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
_KILL_PROCESS = 0x80000000
# Actions that hand the decision to somebody else (TRACE, NOTIFY, TRAP) or let the call through
# under another name (LOG) are left out, so that a profile that names one is refused.
_ACTIONS = {
    _ALLOW: 0x7FFF0000,
    _ERRNO: 0x00050000,
    "SCMP_ACT_KILL": 0,
    "SCMP_ACT_KILL_THREAD": 0,
    "SCMP_ACT_KILL_PROCESS": _KILL_PROCESS,
}
_OPERATOR_ENUM = enumerate(("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"), 1)
_OPERATORS = {f"SCMP_CMP_{name}": value for value, name in _OPERATOR_ENUM}
_ATTR_BAD_ARCH, _ATTR_OPTIMIZE = 2, 8
_INSTRUCTION_BYTES, _MAX_INSTRUCTIONS = 8, 4096  # struct sock_filter, BPF_MAXINSNS


class SeccompError(Exception):
    """A profile that cannot be compiled, or no libseccomp to compile it with."""


class _Arg(ctypes.Structure):
    """``struct scmp_arg_cmp``."""

    _fields_ = (("arg", c_uint32), ("op", c_int), ("value", c_uint64), ("value_two", c_uint64))


def compile_profile(profile: bytes) -> bytes:
    """Return the BPF program of `profile` (JSON) for the running architecture.

    The result is what ``bwrap --seccomp FD`` reads from its descriptor. Calls the profile allows
    but this libseccomp or architecture does not know stay denied. Calls made through another
    architecture's entry (i386, x32) kill the process.

    Raises:
        SeccompError: the profile has a key, action, operator or value that is not understood,
            does not name the running architecture, or libseccomp is not installed.
    """
    try:
        document = json.loads(profile)
    except ValueError as error:
        msg = f"the seccomp profile is not JSON: {error}"
        raise SeccompError(msg) from error
    _keys(document, "profile", "defaultAction archMap syscalls", "defaultErrnoRet")
    default = _action(document, "profile", "defaultAction", "defaultErrnoRet")
    if default == _ACTIONS[_ALLOW]:
        _refuse("defaultAction: only profiles that deny by default are accepted")
    lib = _libseccomp()
    _check_architecture(lib, document["archMap"])
    if not (context := lib.seccomp_init(default)):
        _refuse("libseccomp could not start a filter")
    try:
        _check(lib.seccomp_attr_set(context, _ATTR_BAD_ARCH, _KILL_PROCESS), "bad-arch action")
        # A binary tree instead of a list of comparisons; before libseccomp 2.5 it is only slower.
        lib.seccomp_attr_set(context, _ATTR_OPTIMIZE, 2)
        for name, number, action, args in _rules(lib, document["syscalls"]):
            array = (_Arg * len(args))(*args)
            _check(lib.seccomp_rule_add_array(context, action, number, len(args), array), name)
        return _export(lib, context)
    finally:
        lib.seccomp_release(context)


def _rules(lib: ctypes.CDLL, entries: Any) -> Iterator[tuple[str, int, int, list[_Arg]]]:
    """Yield every rule of the profile as (name, number, action, conditions)."""
    for position, entry in enumerate(_list(entries, "syscalls")):
        where = f"syscalls[{position}]"
        # Docker's `includes` and `excludes` are refused with the other keys: what they depend on
        # (capabilities, kernel version) is decided by the sandbox and not by the profile.
        _keys(entry, where, "names action", "args errnoRet comment")
        action = _action(entry, where, "action", "errnoRet")
        # OCI runtimes write null for "no condition".
        args = [_arg(arg, where) for arg in _list(entry.get("args") or [], where)]
        if len({arg.arg for arg in args}) < len(args):
            # Runtimes disagree: libseccomp refuses it, runc takes it as "or".
            _refuse(f"{where}: two conditions on one argument; write two entries")
        for name in _list(entry["names"], where):
            number = lib.seccomp_syscall_resolve_name(str(name).encode())
            if number >= 0:
                yield name, number, action, args
            elif action != _ACTIONS[_ALLOW]:
                _refuse(f"{where}: libseccomp does not know {name!r}, so it cannot be refused")


def _action(entry: dict[str, Any], where: str, key: str, errno_key: str) -> int:
    name, number = str(entry[key]), entry.get(errno_key)
    if name not in _ACTIONS:
        _refuse(f"{where}: unknown {key} {name!r}")
    if name == _ERRNO:
        # Never 0, which would report success for a call that was not made.
        return _ACTIONS[name] | _int(number or errno.EPERM, 4095, f"{where}: {errno_key}")
    if number is not None:
        _refuse(f"{where}: {errno_key} has no meaning with {name}")
    return _ACTIONS[name]


def _arg(arg: Any, where: str) -> _Arg:
    _keys(arg, f"{where}.args", "index value op", "valueTwo")
    operator = str(arg["op"])
    if operator not in _OPERATORS:
        _refuse(f"{where}: unknown op {operator!r}")
    index = _int(arg["index"], 5, f"{where}: index")
    values = [_int(arg.get(key, 0), 2**64 - 1, f"{where}: {key}") for key in ("value", "valueTwo")]
    return _Arg(index, _OPERATORS[operator], *values)


def _check_architecture(lib: ctypes.CDLL, arch_map: Any) -> None:
    native = lib.seccomp_arch_native()
    for entry in _list(arch_map, "archMap"):
        _keys(entry, "archMap", "architecture", "subArchitectures")
        name = str(entry["architecture"]).removeprefix("SCMP_ARCH_").lower()
        # A 32-bit entry has other call numbers and other argument widths: a second policy.
        if entry.get("subArchitectures"):
            _refuse(f"archMap: subArchitectures of {name} are not supported")
        if lib.seccomp_arch_resolve_name(name.encode()) == native:
            return
    _refuse(f"archMap does not name this machine's architecture ({os.uname().machine})")


def _export(lib: ctypes.CDLL, context: int) -> bytes:
    with open(os.memfd_create("seccomp"), "rb") as file:  # noqa: PTH123 - a descriptor
        _check(lib.seccomp_export_bpf(context, file.fileno()), "the export of the program")
        file.seek(0)
        program = file.read()
    instructions, rest = divmod(len(program), _INSTRUCTION_BYTES)
    if rest or not 0 < instructions <= _MAX_INSTRUCTIONS:
        _refuse(f"libseccomp made a program of {len(program)} bytes, which no kernel loads")
    return program


def _keys(value: Any, where: str, required: str, optional: str) -> None:
    if not isinstance(value, dict):
        _refuse(f"{where}: expected an object")
    needed = set(required.split())
    if missing := sorted(needed - set(value)):
        _refuse(f"{where}: missing {', '.join(missing)}")
    if unknown := sorted(set(value) - needed - set(optional.split())):
        _refuse(f"{where}: unknown or unsupported {', '.join(unknown)}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(f"{where}: expected a list")
    return value


def _int(value: Any, maximum: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        _refuse(f"{where}: {value!r} is not an integer from 0 to {maximum}")
    return value


def _check(code: int, what: str) -> None:
    if code < 0:
        _refuse(f"libseccomp refused {what}: {os.strerror(-code)}")


def _refuse(text: str) -> NoReturn:
    raise SeccompError(text)


@cache
def _libseccomp() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        msg = "libseccomp is missing: apt-get install libseccomp2 / dnf install libseccomp"
        raise SeccompError(msg) from error
    for name, result, arguments in (
        ("seccomp_init", c_void_p, (c_uint32,)),
        ("seccomp_release", None, (c_void_p,)),
        ("seccomp_arch_native", c_uint32, ()),
        ("seccomp_arch_resolve_name", c_uint32, (c_char_p,)),
        ("seccomp_attr_set", c_int, (c_void_p, c_int, c_uint32)),
        ("seccomp_syscall_resolve_name", c_int, (c_char_p,)),
        ("seccomp_rule_add_array", c_int, (c_void_p, c_uint32, c_int, c_uint32, POINTER(_Arg))),
        ("seccomp_export_bpf", c_int, (c_void_p, c_int)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib
