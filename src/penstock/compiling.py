"""How hot paths are compiled: one decorator for all of them, and what is asked of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(signature: Any = None) -> Callable[[_Function], _Function]:
    """Compile, at once if there is a signature; keep the machine code where there is a place for it."""

    def wrap(function: _Function) -> _Function:
        try:
            return cast("_Function", numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError:  # neither the package's directory nor the user's cache can be written
            return cast("_Function", numba.njit(signature, nogil=True)(function))

    return wrap


def read_only(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values; compiled functions are specialised by the flag, and would be compiled for both."""
    view = values.view()
    view.flags.writeable = False
    return view
