"""Stand-ins for packages that SGLang imports on a machine without a GPU but never calls there.

`make sglang-cpu` puts this file into the venv's site-packages, with a .pth that calls `install` at every start.
Not here: anything that works. Invariant: importing a stub, or naming a class of it, succeeds; calling one of its
functions raises.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence


class _Name(type):
    """Makes `SomeClass.Member` another class, as enums and nested names need; cached, so that it equals itself."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        member = _Name(name, (_Stub,), {"__module__": cls.__module__})
        setattr(cls, name, member)
        return member


class _Stub(metaclass=_Name):
    """A class of a stub package: may be subclassed and named, does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass


class _StubModule(types.ModuleType):
    """Has every submodule and every class that it is asked for."""

    def __getattr__(self, name: str) -> object:
        if name == "__version__":
            return "0.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[0].isupper():
            return importlib.import_module(f"{self.__name__}.{name}")
        found = _Name(name, (_Stub,), {"__module__": self.__name__})
        setattr(self, name, found)
        return found

    def __call__(self, *_: object, **__: object) -> object:
        raise RuntimeError(f"{self.__name__} is a stub: this SGLang runs on the CPU, see deploy/sglang/cpu_stubs.py")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = set(packages)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(*packages: str) -> None:
    """From now on these packages are stubs, unless they are installed."""
    sys.meta_path.append(_Finder(packages))
