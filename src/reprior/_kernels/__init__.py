"""The inner loops. `reference` is the specification; `native` (C, optional) holds the per-sample loops."""

from reprior._kernels import reference

__all__ = ["reference"]
