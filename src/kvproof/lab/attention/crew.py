"""A crew: threads that take part in one kernel, and watch for the next one before they sleep.

Waking a sleeping thread takes about 0.1 ms in a virtual machine, as long as a small layer's whole
attention. So a helper that has done its part keeps looking at a mark in memory for about a
millisecond. Marks are set and watched inside compiled code, where no thread holds Python's lock:
a helper finds it free when it fetches the next kernel, and so does the caller at the end.

    marks[0]       the caller has begun kernel number `ticket`
    marks[1]       the ticket, told before
    marks[2]       where memory lies that the kernel may use until it ends
    marks[8 * i]   helper i has done its part of it
    marks[8 * n]   items that the n threads have begun, where they take the next one (`take`)

A kernel takes (..., marks, me, number) as its last arguments; what it does lies between
`ticket = begin(marks, me)` and `end(marks, me, number, ticket)`.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disable-error-code=import-not-found
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kvproof.lab.attention.emit import I32, I64, answer, call, pointer
from kvproof.lab.attention.shapes import kernel

LINE = 8  # marks lie a cache line apart
_ALIGNED = 64  # bytes
_LOOKS = 64  # at a mark before another process may have the core
_TURNS = 1 << 11  # of looks until a helper sleeps: about a millisecond

Job = tuple[Any, tuple[Any, ...], int]  # kernel, its arguments, ticket


@intrinsic
def put_mark(typing_context: Any, marks: Any, index: Any, value: Any) -> Any:
    """marks[index] = value, after all that this thread wrote before."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        b.store_atomic(values[2], pointer(context, b, kinds[0], *values[:2]), "release", 8)

    return answer(types.void, (marks, types.int64, types.int64), emit)


@intrinsic
def get_mark(typing_context: Any, marks: Any, index: Any) -> Any:
    """marks[index], and all that was written before it was set."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = b.bitcast(pointer(context, b, kinds[0], *values), ir.PointerType(I64))
        return b.load_atomic(place, "acquire", 8)

    return answer(types.int64, (marks, types.int64), emit)


@intrinsic
def give_way(typing_context: Any) -> Any:
    """Let another thread have the core, where the system has a call for it."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> None:
        if hasattr(os, "sched_yield"):
            call(b, "sched_yield", I32)

    return answer(types.void, (), emit)


@intrinsic
def take(typing_context: Any, marks: Any, number: Any) -> Any:
    """The next item of a kernel on `number` threads: each number from 0 on goes to one of them."""

    def emit(context: Any, b: Any, kinds: Any, values: Any) -> Any:
        place = pointer(context, b, kinds[0], values[0], b.mul(values[1], I64(LINE)))
        return b.atomic_rmw("add", place, I64(1), "monotonic")

    return answer(types.int64, (marks, types.int64), emit)


@kernel
def reached(marks, index, value):
    """Whether marks[index] reaches `value` within a turn of looks."""
    for _ in range(_LOOKS):
        if get_mark(marks, index) >= value:
            return True
    give_way()
    return False


@kernel
def begin(marks, me):
    """The ticket of this kernel; the caller's helpers may begin."""
    if me == 0:
        put_mark(marks, 0, marks[1])
    return marks[1]


@kernel
def end(marks, me, number, ticket):
    """The caller waits for all; a helper for the caller's next kernel, as long as it looks."""
    if me == 0:
        for i in range(1, number):
            while not reached(marks, LINE * i, ticket):
                pass
    else:
        put_mark(marks, LINE * me, ticket)
        for _ in range(_TURNS):
            if reached(marks, 0, ticket + 1):
                break


@kernel
def meet(marks, me, number, phase):
    """Wait until all threads have come here with this `phase`; phases rise from 1."""
    put_mark(marks, LINE * me, phase)
    for other in range(number):
        while not reached(marks, LINE * other, phase):
            pass


class Crew:
    """`number` threads, of which the caller is one. One kernel at a time."""

    def __init__(self, number: int) -> None:
        self.number, self._ticket = number, 0
        self._marks = np.zeros(LINE * (number + 1), np.int64)
        self._room = np.empty(0, np.uint8)
        self._lock = threading.Lock()
        self._helpers = [_Helper(self._marks, i, number) for i in range(1, number)]

    def run(self, kernel: Any, args: tuple[Any, ...], room: int = 0) -> None:
        """kernel(*args, marks, i, number) on each thread; back when all are done.

        `room`: bytes that it may use meanwhile, the same memory in each run: new memory would cost
        a page fault for each 4 KiB.
        """
        with self._lock:
            if room > self._room.nbytes - _ALIGNED:
                self._room = np.empty(room + _ALIGNED, np.uint8)
                self._marks[2] = -(-self._room.ctypes.data // _ALIGNED) * _ALIGNED
            self._marks[LINE * self.number] = 0
            self._ticket += 1
            self._marks[1] = self._ticket
            for helper in self._helpers:
                helper.take((kernel, args, self._ticket))
            kernel(*args, self._marks, 0, self.number)


class _Helper:
    """A thread of a crew; it ends with the process."""

    def __init__(self, marks: Any, me: int, number: int) -> None:
        self._place = marks, me, number
        self._job: Job | None = None
        self._asleep, self._wake = False, threading.Event()
        threading.Thread(target=self._work, name=f"kvproof-kernel-{me}", daemon=True).start()

    def take(self, job: Job) -> None:
        """The next kernel; the helper sees it at the caller's mark, or is woken."""
        self._job = job
        if self._asleep:
            self._wake.set()

    def _work(self) -> None:
        done = 0
        while True:
            job = self._job
            if job is None or job[2] == done:
                self._sleep(done)
                continue
            kernel, args, done = job
            kernel(*args, *self._place)

    def _sleep(self, done: int) -> None:
        """Until there is a job after number `done`; looked for again once `asleep` is known."""
        self._wake.clear()
        self._asleep = True
        if self._job is None or self._job[2] == done:
            self._wake.wait()
        self._asleep = False
