"""Starts a program under a seccomp filter that forbids a system call, as the sandbox of a container does:
``python forbidden.py CALL ERROR PROGRAM [ARGUMENT...]``. The call fails with the error, such as EPERM."""

import ctypes
import errno
import os
import struct
import sys

#: The numbers of system calls on x86-64.
NUMBERS = {
    "fallocate": 285,
    "fcntl": 72,
    "madvise": 28,
    "memfd_create": 319,
    "pidfd_open": 434,
    "sched_setaffinity": 203,
    "setsockopt": 54,
    "socketpair": 53,
}
#: Second arguments for which alone a call is forbidden.
COMMANDS = {"fcntl": 1033}  # F_ADD_SEALS

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x0005_0000, 0x7FFF_0000
# Instructions: load a word of the call's data, compare, return. And the words: the number, and the second argument.
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, SECOND = 0, 24


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def forbid(call: str, error: int) -> None:
    """Makes the call fail with the error in this process, and in the programs that it starts."""
    wanted = [(NUMBER, NUMBERS[call])] + ([(SECOND, COMMANDS[call])] if call in COMMANDS else [])
    instructions = []
    for place, (word, value) in enumerate(wanted):
        # A word that differs leads to the last instruction.
        left = 2 * (len(wanted) - place) - 1
        instructions += [(LOAD, 0, 0, word), (EQUAL, 0, left, value)]
    instructions += [(RETURN, 0, 0, SECCOMP_RET_ERRNO | error), (RETURN, 0, 0, SECCOMP_RET_ALLOW)]
    content = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(content)
    program = Program(len(instructions), ctypes.addressof(buffer))
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()


if __name__ == "__main__":
    forbid(sys.argv[1], getattr(errno, sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
