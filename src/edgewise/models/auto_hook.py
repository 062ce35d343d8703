"""Registers twins with transformers' auto classes as soon as these are imported, without importing transformers itself.

transformers takes seconds to import, so `import edgewise` must not do it. Where its auto classes are there already, twins
are registered at once; otherwise a finder at the head of `sys.meta_path` does it right after their import.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_CONFIGS = "transformers.models.auto.configuration_auto"
_MODELS = "transformers.models.auto.modeling_auto"


def register_with_transformers() -> None:
    """Make twins known to `AutoConfig` and `AutoModelForCausalLM`, now or when they are imported."""
    for name in (_CONFIGS, _MODELS):
        if name in sys.modules:
            _register(name)
    if _MODELS not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register(name: str) -> None:
    from edgewise.models import auto  # imports transformers' configs, which are there only now

    (auto.register_config if name == _CONFIGS else auto.register_model)(sys.modules[name])


class _Finder(MetaPathFinder):
    """Finds nothing itself; has the other finders find transformers' auto classes, and adds to what their import does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_CONFIGS, _MODELS):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader, lambda: _register(fullname))
        return spec


def _call_after(loader: Any, callback: Any) -> None:
    """Have a loader call back once it has executed the module."""
    execute = loader.exec_module

    def execute_and_call(module: ModuleType) -> None:
        execute(module)
        callback()

    loader.exec_module = execute_and_call
