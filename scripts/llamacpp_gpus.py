"""GPUs that compute nothing, for the llama.cpp oracle: devices of a CUDA's habits, in memory.

llama.cpp places layers on them, splits its graphs and sizes its buffers as it does for real ones:
each has a buffer type of its own, pinned host memory, events, and takes batches of 32 and more
from weights in host memory. They are told to the library by its own registry of backends.
"""

from __future__ import annotations

from typing import Any

_GPU = 1  # GGML_BACKEND_DEVICE_TYPE_GPU
_API_VERSION = 2
_ALIGNMENT = 128
_HOST_ALIGNMENT = 32
_LEAST_BATCH = 32
_MEMORY = 80 * 2**30

_STRUCTURES = """
struct buft_i { void *get_name, *alloc_buffer, *unused, *get_alignment, *get_max_size,
                     *get_alloc_size, *unused_too, *is_host; };
struct buft { struct buft_i iface; void *device, *context; };
struct buffer_i { void *free_buffer, *get_base, *init_tensor, *memset_tensor, *set_tensor,
                       *get_tensor, *set_tensor_2d, *get_tensor_2d, *cpy_tensor, *clear, *reset; };
struct backend_i { void *get_name, *free, *set_async, *get_async, *set_2d, *get_2d, *copy_async,
                        *synchronize, *plan_create, *plan_free, *plan_update, *plan_compute,
                        *compute, *event_record, *event_wait, *optimize; };
struct backend { void *guid; struct backend_i iface; void *device, *context; };
struct event { void *device, *context; };
struct props { const char *name, *description; size_t free, total; int type; const char *id;
               _Bool async, host_buffer, from_host, events, mmap; };
struct device_i { void *get_name, *get_description, *get_memory, *get_type, *get_props, *init,
                       *get_buffer_type, *get_host_buffer_type, *from_host_ptr, *supports_op,
                       *supports_buft, *offload_op, *event_new, *event_free, *event_sync; };
struct device { struct device_i iface; void *reg, *context; };
struct reg_i { void *get_name, *get_count, *get_device, *get_proc_address; };
struct reg { int api_version; struct reg_i iface; void *context; };
struct tensor { int type; void *buffer; int64_t ne[4]; size_t nb[4]; int op; };
void ggml_backend_register(void *);
void *ggml_backend_buffer_init(void *buft, struct buffer_i iface, void *context, size_t size);
const char *ggml_op_name(int);
"""


class Gpus:
    """`count` devices, registered with the library at `path`."""

    def __init__(self, path: str, count: int) -> None:
        import os

        from cffi import FFI

        self.ffi = FFI()
        self.ffi.cdef(_STRUCTURES)
        self.lib = self.ffi.dlopen(path, os.RTLD_NOW | os.RTLD_GLOBAL)
        self.kept: list[Any] = []
        names = {self._text(self.lib.ggml_op_name(i)): i for i in range(60)}
        self.rows, self.matmul = names["GET_ROWS"], names["MUL_MAT"]
        self.third = {names["MUL_MAT_ID"], names["ROPE"], names["ROPE_BACK"]}
        self.reg = self._new("struct reg *", {"api_version": _API_VERSION})
        self.devices = [self._device(number) for number in range(count)]
        self.reg.iface = {
            "get_name": self._call("const char *(*)(void *)", lambda _r: self._name("CUDA")),
            "get_count": self._call("size_t (*)(void *)", lambda _r: count),
            "get_device": self._call("void *(*)(void *, size_t)", lambda _r, i: self.devices[i]),
            "get_proc_address": self._call(
                "void *(*)(void *, const char *)", lambda _r, _n: self.ffi.NULL
            ),
        }
        self.lib.ggml_backend_register(self.reg)

    def _text(self, words: Any) -> str:
        return "" if words == self.ffi.NULL else self.ffi.string(words).decode()

    def _new(self, kind: str, value: Any = None) -> Any:
        made = self.ffi.new(kind, value)
        self.kept.append(made)
        return made

    def _name(self, text: str) -> Any:
        return self._new("char[]", text.encode())

    def _call(self, kind: str, function: Any) -> Any:
        made = self.ffi.callback(kind, function)
        self.kept.append(made)
        return self.ffi.cast("void *", made)

    def _buffers(self) -> dict[str, Any]:
        free = self._call("void (*)(void **)", lambda _b: None)
        quiet = {name: self._call("void (*)(void *)", lambda _b: None)
                 for name in ("memset_tensor", "set_tensor", "get_tensor", "clear")}  # fmt: skip
        base = self._call("void *(*)(void *)", lambda _b: self.ffi.cast("void *", 2**40))
        return {"free_buffer": free, "get_base": base, **quiet}

    def _buffer_type(self, name: str, device: Any) -> Any:
        made = self._new("struct buft *")
        interface = self._new("struct buffer_i *", self._buffers())
        label = self._name(name)

        def allocate(_type: Any, size: int) -> Any:
            return self.lib.ggml_backend_buffer_init(made, interface[0], self.ffi.NULL, size)

        made.iface = {
            "get_name": self._call("const char *(*)(void *)", lambda _t: label),
            "alloc_buffer": self._call("void *(*)(void *, size_t)", allocate),
            "get_alignment": self._call("size_t (*)(void *)", lambda _t: _ALIGNMENT),
        }
        made.device = device
        return made

    def _host_type(self, device: Any) -> Any:
        """Pinned memory of the host, which the CPU can use."""
        made = self._buffer_type("CUDA_Host", device)
        made.iface.get_alignment = self._call("size_t (*)(void *)", lambda _t: _HOST_ALIGNMENT)
        made.iface.is_host = self._call("_Bool (*)(void *)", lambda _t: True)
        return made

    def _device(self, number: int) -> Any:
        ffi, made = self.ffi, self._new("struct device *")
        own = self._buffer_type(f"CUDA{number}", made)
        if not number:
            self.host = self._host_type(made)
        name, words = self._name(f"CUDA{number}"), self._name("computes nothing")

        def memory(_d: Any, free: Any, whole: Any) -> None:
            free[0] = whole[0] = _MEMORY

        def props(_d: Any, out: Any) -> None:
            out[0] = {"name": name, "description": words, "free": _MEMORY, "total": _MEMORY,
                      "type": _GPU, "id": ffi.NULL, "async": True, "host_buffer": True,
                      "from_host": False, "events": True, "mmap": False}  # fmt: skip

        def event(device: Any) -> Any:
            return self._new("struct event *", {"device": device})

        made.iface = {
            "get_name": self._call("const char *(*)(void *)", lambda _d: name),
            "get_description": self._call("const char *(*)(void *)", lambda _d: words),
            "get_memory": self._call("void (*)(void *, size_t *, size_t *)", memory),
            "get_type": self._call("int (*)(void *)", lambda _d: _GPU),
            "get_props": self._call("void (*)(void *, struct props *)", props),
            "init": self._call("void *(*)(void *, const char *)", lambda d, _p: self._backend(d)),
            "get_buffer_type": self._call("void *(*)(void *)", lambda _d: own),
            "get_host_buffer_type": self._call("void *(*)(void *)", lambda _d: self.host),
            "supports_op": self._call("_Bool (*)(void *, void *)", lambda _d, _o: True),
            "supports_buft": self._call("_Bool (*)(void *, void *)", lambda _d, t: t == ffi.cast(
                "void *", own)),
            "offload_op": self._call("_Bool (*)(void *, struct tensor *)", self._takes),
            "event_new": self._call("void *(*)(void *)", event),
            "event_free": self._call("void (*)(void *, void *)", lambda _d, _e: None),
            "event_sync": self._call("void (*)(void *, void *)", lambda _d, _e: None),
        }  # fmt: skip
        made.reg = self.reg
        return made

    def _takes(self, _device: Any, op: Any) -> bool:
        """Whether a batch is large enough to be computed here though its weight is on the host."""
        if op.op == self.rows:
            return False
        if op.op == self.matmul:
            return bool(op.ne[1] >= _LEAST_BATCH)
        if op.op in self.third:
            return bool(op.ne[2] >= _LEAST_BATCH)
        return bool(op.ne[1] * op.ne[2] * op.ne[3] >= _LEAST_BATCH)

    def _backend(self, device: Any) -> Any:
        ffi, name = self.ffi, self._name("CUDA")
        made = self._new("struct backend *", {"device": device})
        made.guid = self._new("char[16]", b"computes nothing"[:16])
        quiet = self._call("void (*)(void *)", lambda _b: None)
        made.iface = {
            "get_name": self._call("const char *(*)(void *)", lambda _b: name),
            "free": quiet, "synchronize": quiet,
            "compute": self._call("int (*)(void *, void *)", lambda _b, _g: 0),
            "event_record": self._call("void (*)(void *, void *)", lambda _b, _e: None),
            "event_wait": self._call("void (*)(void *, void *)", lambda _b, _e: None),
        }  # fmt: skip
        return ffi.cast("void *", made)
