"""Modules that take the place of a model's own in narrow forwards, and leave wide ones to it.

Where products are of integers they take all forwards: such products round to a grid, and one path for every width is
what keeps a row the same, bit for bit, whatever stands beside it.

Each of them knows one formula. Whether a module of some model computes just that is not read off its name: it is tried,
see ``install.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runtime.engine.kv_cache import GrowingCache, GrowingLayer, cache_among
from runtime.engine.native import team
from runtime.engine.native.library import kernels
from runtime.engine.native.shared import SharedProduct

FEW_ROWS = 16
"""Most tokens of a narrow forward: a verification, a short catch-up."""
ANY_ROWS = 1 << 40
"""Instead of ``FEW_ROWS`` where no forward is to be left to the model."""
LARGEST_HEAD = 512
"""Numbers of a head that the kernel has room for."""


class Norm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight``.

    Args:
        inner: The module it stands for.
        weight: Float32, shape (width,).
        eps: Added to the mean square.
        most_rows: Tokens up to which it takes a forward; for more it is left to ``inner``.
    """

    def __init__(self, inner: nn.Module, weight: torch.Tensor, eps: float, most_rows: int = FEW_ROWS) -> None:
        super().__init__()
        self.most_rows = most_rows
        self.inner, self.weight, self.eps, self._width = inner, weight.contiguous(), eps, weight.shape[0]
        self._normalise = kernels().normalise

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (..., width), normalised."""
        count = rows.numel() // self._width
        if count > self.most_rows or not rows.is_contiguous():
            wide: torch.Tensor = self.inner(rows)
            return wide
        result = torch.empty_like(rows)
        self._normalise(
            rows.data_ptr(), self.weight.data_ptr(), result.data_ptr(), count, self._width, self.eps,
            team.size(),
        )  # fmt: skip
        return result


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``.

    Args:
        inner: The module it stands for: with ``down_proj``.
        product: Gate and up, side by side.
        most_rows: As of ``Norm``.
    """

    def __init__(self, inner: nn.Module, product: SharedProduct, most_rows: int = FEW_ROWS) -> None:
        super().__init__()
        self.most_rows = most_rows
        self.inner, self._product = inner, [product]  # in a list: it is the inner module's child
        self._width = product.sizes[0]
        self._gate = kernels().gate

    @property
    def product(self) -> SharedProduct:
        """Gate and up, side by side."""
        return self._product[0]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """States (1, n, width) to the same shape."""
        result: torch.Tensor
        if rows.dim() != 3 or rows.shape[0] * rows.shape[1] > self.most_rows:
            result = self.inner(rows)
            return result
        both = self.product(rows)
        gated = both.new_empty((*rows.shape[:-1], self._width))
        count = rows.shape[0] * rows.shape[1]
        self._gate(both.data_ptr(), gated.data_ptr(), count, self._width, team.size())
        result = self.inner.down_proj(gated)  # type: ignore[operator]
        return result


class CachedAttention(nn.Module):
    """Causal attention of a few tokens behind a cache: queries and keys turned by halves, full heads, no window.

    Args:
        inner: The module it stands for: with ``layer_idx``, ``o_proj`` and ``scaling``.
        product: Queries, keys and values, side by side.
        size: Numbers of a head.
        most_rows: As of ``Norm``.
    """

    def __init__(self, inner: nn.Module, product: SharedProduct, size: int, most_rows: int = FEW_ROWS) -> None:
        super().__init__()
        self.most_rows = most_rows
        self.inner, self._product, self.size = inner, [product], size
        self.heads, self.groups = product.sizes[0] // size, product.sizes[1] // size
        self.layer, self.scale = int(inner.layer_idx), float(inner.scaling)  # type: ignore[arg-type]
        self._attend = kernels().attend

    @property
    def product(self) -> SharedProduct:
        """Queries, keys and values, side by side."""
        return self._product[0]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **arguments: Any,
    ) -> Any:
        """As the module it stands for."""
        cache = cache_among(arguments)
        batch, rows, _ = hidden_states.shape
        layer = self._layer_of(cache, hidden_states) if cache is not None else None
        if layer is None or position_embeddings is None or batch != 1 or rows > self.most_rows:
            return self.inner(hidden_states, position_embeddings=position_embeddings, **arguments)
        cosine, sine = position_embeddings[0].contiguous(), position_embeddings[1].contiguous()
        turned = self.product(hidden_states)
        keys, values, length = layer.extend(rows)
        seen = turned.new_empty((1, rows, self.heads * self.size))
        self._attend(
            turned.data_ptr(), cosine.data_ptr(), sine.data_ptr(), keys.data_ptr(), values.data_ptr(), seen.data_ptr(),
            rows, length, keys.shape[-2], self.heads, self.groups, self.size, self.scale, team.size(),
        )  # fmt: skip
        return self.inner.o_proj(seen), None  # type: ignore[operator]

    def _layer_of(self, cache: GrowingCache, states: torch.Tensor) -> GrowingLayer | None:
        """The cache's layer; one without a shape yet gets it here, unless the model itself takes that forward."""
        if self.most_rows == ANY_ROWS and cache.held(self.layer) is None:
            nothing = states.new_empty((1, self.groups, 0, self.size))
            cache.update(nothing, nothing, self.layer)
        return cache.held(self.layer)


class NarrowMask:
    """What to pass as a mask where no layer asks for one, so that none is made.

    Args:
        model: A model whose attention modules are all replaced, or not.
    """

    def __init__(self, model: nn.Module) -> None:
        attentions = [part for part in model.modules() if isinstance(part, CachedAttention)]
        layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)  # type: ignore[union-attr, operator]
        self._last = attentions[-1] if len(attentions) == layers else None
        self._none = torch.zeros(1, 1, 1, 1)  # of four dimensions: taken as it is

    def arguments(self, rows: int, cache: GrowingCache) -> dict[str, torch.Tensor]:
        """Arguments of a forward of ``rows`` tokens behind ``cache``."""
        last = self._last
        # Asked anew each time: where products of integers were given up, wide forwards went back to the model.
        if last is None or rows > last.most_rows:
            return {}
        if last.most_rows < ANY_ROWS and cache.held(last.layer) is None:
            return {}
        return {"attention_mask": self._none}
